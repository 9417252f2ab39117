"""What the studies share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def levels_stay() -> Iterator[None]:
    """Studies silence the warnings of unknown ids for their own process."""
    logger = logging.getLogger("recsys_moe.inference")
    level = logger.level
    yield
    logger.setLevel(level)
