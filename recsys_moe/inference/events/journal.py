"""Events in a file that outlives the process: one JSON object a line, appended, never rewritten.

{"user": "1", "item": "50", "time": 978130092.0, "value": 4.0, "id": "a1"}; value and id may lack.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recsys_moe.errors import ConfigError, DataError, RunError
from recsys_moe.files import sync_folder
from recsys_moe.inference.events.observed import Event, read_event

logger = logging.getLogger("recsys_moe")
CORRECT = "correct or remove the line"
LONGEST_LINE = 16_384
"""Bytes: four times what an event with the longest ids takes."""


class Journal:
    """An open file of events, locked against other processes.

    `replay` comes first. `append` returns when the disk has the events: one write and one fsync for
    a list of them. A list whose write fails leaves nothing in the file.
    """

    def __init__(self, path: Path) -> None:
        """Open, or create. Raises ConfigError where that is impossible."""
        self.path, self._end = path, 0
        if path.exists() and not path.is_file():
            raise ConfigError(f"--events {path} must be a file; pass a path ending in .jsonl")
        try:
            is_new = not path.exists()
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            if is_new:
                sync_folder(path.absolute().parent)
        except OSError as error:
            reason = error.strerror or error
            remedy = "choose a file in a folder that may be written"
            raise ConfigError(f"--events {path} cannot be opened: {reason}; {remedy}") from None
        if not _lock(self._file):
            self.close()
            raise ConfigError(f"--events {path} is in use by another process; choose another file")

    def close(self) -> None:
        """Release the file."""
        os.close(self._file)

    def replay(self, check: Callable[[Event], None] | None = None) -> Iterator[Event]:
        """The events of the file, in order.

        A last line that a kill or a power loss cut off is removed. Raises DataError with the number
        of any other line that is not an event, or that `check` raises one for.
        """
        for number, (line, event) in enumerate(lines_of(self.path), 1):
            if event is None:
                logger.warning("%s: line %d is incomplete and was removed", self.path, number)
                os.ftruncate(self._file, self._end)
                return
            if check is not None:
                # An event that was accepted under a larger tolerance may still be in the future.
                remedy = f"{CORRECT}, or raise --event-tolerance"
                check_line(event, check, (self.path, number), remedy)
            self._end += len(line)
            yield event
            if not line.endswith(b"\n"):
                return self._write(b"\n")

    def append(self, events: Sequence[Event]) -> None:
        """Write and fsync. Raises RunError where the disk fails; then nothing was appended."""
        self._write(b"".join(map(_line, events)))

    def _write(self, content: bytes) -> None:
        try:
            if os.fstat(self._file).st_size > self._end:  # what an earlier failure left
                os.ftruncate(self._file, self._end)
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            reason = error.strerror or error
            raise RunError(
                f"events cannot be written to {self.path}: {reason}; make room and send them again"
            ) from None
        self._end += len(content)


def lines_of(path: Path) -> Iterator[tuple[bytes, Event | None]]:
    """The lines of a file and their events; None of a last line that was cut off.

    Raises DataError with the number of any other line that is not an event.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE), b""), 1):
            try:
                event = _read(line)
            except DataError as error:
                if line.endswith(b"\n") or b"\n" in stream.read():
                    raise DataError(f"{path}, line {number}: {error}; {CORRECT}") from None
                event = None
            yield line, event
            if event is None:
                return


def check_line(
    event: Event, check: Callable[[Event], None], place: tuple[Path, int], remedy: str = CORRECT
) -> None:
    """Raise the DataError of `check` with the file and the line that it is about."""
    try:
        check(event)
    except DataError as error:
        raise DataError(f"{place[0]}, line {place[1]}: {error}; {remedy}") from None


def _line(event: Event) -> bytes:
    cells = {name: value for name, value in event._asdict().items() if value is not None}
    return json.dumps(cells, allow_nan=False).encode() + b"\n"


def _read(line: bytes) -> Event:
    """Raises DataError."""
    if len(line) >= LONGEST_LINE:
        raise DataError(f"must be shorter than {LONGEST_LINE} bytes")
    try:
        cells: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError("must hold one JSON object") from None
    return read_event(cells, of_users=True)


def _lock(file: int) -> bool:
    """False if another process holds it; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
