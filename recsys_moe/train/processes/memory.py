"""Process settings during training: memory and denormal numbers."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# glibc: parameters of malloc.h
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
TRAINING = {TRIM_THRESHOLD: 2**31 - 1, MMAP_MAX: 0}
# Any call turns off glibc's own adaptation: these are the values that it would reach.
AFTERWARDS = {TRIM_THRESHOLD: 2**26, MMAP_THRESHOLD: 2**25, MMAP_MAX: 65536}


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Treat denormals, which Adam's moments of rare rows become and which are slow, as 0.

    Threads of OpenMP inherit the flag when they are created: enter before the first parallel
    operation of the process, or only the calling thread flushes.
    """
    before = _flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory for the next training step, and return it at the end."""
    _tune_malloc(TRAINING)
    try:
        yield
    finally:
        _tune_malloc(AFTERWARDS)
        if (trim := _c_function("malloc_trim")) is not None:
            trim(0)


@contextmanager
def training_process() -> Iterator[None]:
    """Both, around a training loop."""
    with flushed_denormals(), kept_memory():
        yield


def _flushes_denormals() -> bool:
    """1e-40 is a denormal float32."""
    return bool(torch.tensor([1e-40]).mul(1.0).item() == 0)


def _tune_malloc(settings: dict[int, int]) -> None:
    """Set parameters of glibc's malloc; other C libraries stay as they are.

    By default a block above 32 MB is mapped anew at each step, and its page faults cost more than
    filling it: 30 of 60 ms of a step with 256 experts, whose gradient has 67 MB.
    """
    mallopt = _c_function("mallopt")
    for name, value in settings.items():
        if mallopt is not None:
            mallopt(name, value)


def _c_function(name: str) -> Any:
    """A function of glibc; None with another C library."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
