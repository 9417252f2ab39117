"""Looking into a running `fit`, which takes no callbacks of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import lightning
from lightning.pytorch.callbacks import Callback


@contextmanager
def watched_by(watcher: Callback) -> Iterator[None]:
    """Every Trainer made meanwhile has one more callback."""
    create = lightning.Trainer.__init__

    def with_watcher(self: lightning.Trainer, *, callbacks: list[Any], **settings: Any) -> None:
        create(self, callbacks=[*callbacks, watcher], **settings)

    with patch.object(lightning.Trainer, "__init__", with_watcher):
        yield
