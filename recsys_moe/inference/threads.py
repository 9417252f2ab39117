"""Users to rank for and pieces of a file are shared out among threads, not the operations of
each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

USERS_AT_ONCE = 64
"""Users of one task of a pool."""
Given = TypeVar("Given")
Made = TypeVar("Made")


@contextmanager
def one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """As many threads as torch has, while torch has one: the operations of scoring are too small
    to be divided. Of the whole process, so for commands and not for the service."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads)
    torch.set_num_threads(1)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def in_turn(work: Callable[[Given], Made], parts: Iterable[Given]) -> Iterator[Made]:
    """`map` by `one_thread_each`, which reads no further ahead than there are threads."""
    threads = torch.get_num_threads()
    waiting: deque[Future[Made]] = deque()
    with one_thread_each() as pool:
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
