"""SIGINT and SIGTERM end a command with one line and 128 + the signal.

An exception would not do while libraries load: it leaves modules half imported, and C code may
swallow it. So the process ends at once, except where something must be cleaned up first.
The first module of ours that a command loads: standard library only, and little of that.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)
REPORTS = "RECSYS_MOE_REPORTS"
"""Names the folder where a process that another one of ours started leaves its last error."""
SECONDS_OF_ONE_WISH = 1.0
"""`timeout` and terminals signal the process and its group: both count as one signal."""
SECONDS_BEFORE_AGAIN = 0.02
"""Until a signal that had no effect is sent again."""

STARTED = time.monotonic()
"""About when the command began."""

_blocks = 0
_received = 0
_code: int | None = None
"""To end with."""
_is_first = False
"""Whether `_end` is the last thing to run."""
_raised = float("-inf")
"""When SystemExit was, in seconds of time.monotonic."""


def listen() -> None:
    """Handle both signals from now on; one that is ignored, as by nohup, stays ignored."""
    for number in NUMBERS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _receive)
    sys.unraisablehook = _unraisable
    global _is_first
    _is_first = atexit._ncallbacks() == 0
    atexit.register(_end)  # runs last: then all is done, and Python would reset the handlers


class unwinding:  # noqa: N801 - as contextlib's, which would take time to load
    """In the block a signal raises SystemExit, so that half-written output is removed.

    If it was swallowed, the end of the outermost block ends the process.
    """

    def __enter__(self) -> None:
        global _blocks
        _blocks += 1

    def __exit__(self, kind: type[BaseException] | None, *unused: object) -> None:
        global _blocks
        _blocks -= 1
        if _received and not _blocks and kind is None:
            leave(_received)


def received() -> int:
    """The signal that arrived in a block of `unwinding`; 0 for none."""
    return _received


def leave(number: int) -> None:
    """End the process with one line, past Python's streams: one may be locked.

    Of several training processes only the one that started the others prints.
    """
    try:
        if REPORTS not in os.environ:
            os.write(2, b"error: interrupted\n")
    finally:
        os._exit(128 + number)


def _receive(number: int, frame: FrameType | None) -> None:
    global _received, _raised
    if not _blocks:
        leave(number)
    if time.monotonic() - _raised < SECONDS_OF_ONE_WISH:
        return
    _received = number
    if _is_import(frame):
        _thread.start_new_thread(_again, (number,))
    else:
        _raised = time.monotonic()
        raise SystemExit(128 + number)


def end_with(code: object) -> None:
    """End with `code` (that of a SystemExit) as soon as all of `atexit` has run.

    Python's finalisation would follow, in which threads of pyarrow may abort the process: 134
    instead of the exit code. It still follows where something was registered before `listen`.
    """
    global _code
    if isinstance(code, int | None):  # a text would be for Python to print
        _code = code or 0


def _end() -> None:
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)
    if _code is None or not _is_first:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        os._exit(_code)


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _again(number: int) -> None:
    global _raised
    time.sleep(SECONDS_BEFORE_AGAIN)
    _raised = float("-inf")
    os.kill(os.getpid(), number)


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Python would only print what a `__del__` raises: send the signal again."""
    if _received and issubclass(unraisable.exc_type, SystemExit):
        _thread.start_new_thread(_again, (_received,))
    else:
        sys.__unraisablehook__(unraisable)
