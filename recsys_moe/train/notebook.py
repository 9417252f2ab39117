"""Training in a notebook: a bar for the epoch, and a printed line for each that is finished.

Neither Lightning's nor rich's bar is seen there without ipywidgets; this one needs IPython alone.
"""

from __future__ import annotations

import html
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from lightning import Trainer

from recsys_moe.train.callbacks import SECONDS_BETWEEN_NUMBERS, PlainProgress

LINES = logging.getLogger("recsys_moe")


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def printed_lines() -> Iterator[None]:
    """In a notebook in which nobody has set up logging: lines of a run are printed below it."""
    if not in_notebook() or LINES.isEnabledFor(logging.INFO):
        yield
        return
    handler, before = logging.StreamHandler(sys.stdout), (LINES.level, LINES.propagate)
    LINES.addHandler(handler)
    LINES.setLevel(logging.INFO)
    LINES.propagate = False  # the root's handler would repeat warnings
    try:
        yield
    finally:
        LINES.removeHandler(handler)
        LINES.setLevel(before[0])
        LINES.propagate = before[1]


class Shown:
    """What a notebook shows: a bar, or its text where there is no HTML."""

    def __init__(self, text: str, done: int, total: int) -> None:
        self.text, self.done, self.total = text, done, total

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.done}" max="{self.total}"></progress>'
        return f"{bar} {html.escape(self.text)}"

    def __repr__(self) -> str:
        return self.text


class NotebookBar(PlainProgress):
    """One bar for the run, which is updated in place; PlainProgress's line per epoch below it."""

    def on_train_start(self, trainer: Trainer, *unused: Any) -> None:
        display = import_module("IPython.display").display
        self.handle = display(Shown("training", 0, 1), display_id=True)
        super().on_train_start(trainer)

    def pause(self) -> float:
        return SECONDS_BETWEEN_NUMBERS

    def show(self, line: str, step: int, steps: int) -> None:
        self.handle.update(Shown(line, step, steps))

    def on_train_end(self, trainer: Trainer, *unused: Any) -> None:
        epochs = trainer.current_epoch
        self.handle.update(Shown(f"trained for {epochs} epochs", 1, 1))
