"""Settings of the process that trains: memory and denormal numbers."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# glibc, malloc.h and its defaults
TRIM_THRESHOLD, MMAP_MAX = -1, -4
NEVER, DEFAULT_TRIM, DEFAULT_MAPS = 2**31 - 1, 128 * 1024, 65536


@contextmanager
def training_process() -> Iterator[None]:
    """Flush denormals and keep freed memory for the next step; put back afterwards."""
    torch.set_flush_denormal(True)  # rare rows drive Adam's moments into slow denormals
    _tune_malloc(trim_threshold=NEVER, maps=0)
    try:
        yield
    finally:
        _tune_malloc(trim_threshold=DEFAULT_TRIM, maps=DEFAULT_MAPS)
        _give_back()
        torch.set_flush_denormal(False)


def _tune_malloc(trim_threshold: int, maps: int) -> None:
    """Ask glibc to serve large blocks from its heap and to return none to the system.

    By default a block above 32 MB is mapped anew at each step, and its page faults cost more than
    filling it: 30 of 60 ms of a step with 256 experts, whose gradient has 67 MB. Other C libraries
    have no such calls and are left as they are.
    """
    mallopt = _c_function("mallopt")
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, trim_threshold)
        mallopt(MMAP_MAX, maps)


def _give_back() -> None:
    """Return the pages that were kept, so that what follows does not add to them."""
    malloc_trim = _c_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _c_function(name: str) -> Any:
    """A function of glibc; None with another C library."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
