"""SIGINT and SIGTERM for a loop that finishes its step first."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from recsys_moe.interrupts import NUMBERS, SECONDS_OF_ONE_WISH

SIGNAL_AT_PARENT_DEATH = 1  # linux/prctl.h


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """`handler` gets both signals; an ignored one, as with nohup, stays ignored."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    taken = [number for number in NUMBERS if before[number] != signal.SIG_IGN]
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number] or signal.SIG_DFL)


class StopSignals:
    """`number` is the first signal, 0 before; a second one ends the process at once."""

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals in the main thread, and restore the handlers afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with handled(self._receive):
            yield

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # Not by Python's streams: the signal may have come inside one of their locks.
        if not self.number:
            self.number, self._since = number, time.monotonic()
            os.write(2, b"stopping after this step; a second signal stops at once\n")
        elif time.monotonic() - self._since > SECONDS_OF_ONE_WISH:
            os._exit(128 + number)


def end_with_parent() -> Callable[[], object]:
    """A call for the child process: SIGTERM when its parent dies, even of SIGKILL."""
    prctl = ctypes.CDLL(None).prctl  # before the fork, where loading it could wait for a lock
    return lambda: prctl(SIGNAL_AT_PARENT_DEATH, signal.SIGTERM)
