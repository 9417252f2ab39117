"""Rankings of many users are shared out among threads, not the operations of each."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

USERS_AT_ONCE = 64
"""Users of one task of a pool."""


@contextmanager
def one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """As many threads as torch has, while torch has one: the operations of a ranking are too small
    to be divided. Of the whole process, so for commands and not for the service."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads)
    torch.set_num_threads(1)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
