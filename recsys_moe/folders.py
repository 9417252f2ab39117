"""Folders that appear whole or not at all. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys_moe.interrupts import unwinding

PART = ".part"
"""Ending of what is being written."""
NEW, PREVIOUS = "new", "previous"
"""What may lie in a scratch folder: what is being written, and what it replaces."""


def _scratch_names(name: str) -> str:
    """Of the scratch folders beside a folder, as a regular expression."""
    return rf"\.{re.escape(name)}-\w{{8}}{re.escape(PART)}"


INSIDE = re.compile(rf"{NEW}|{PREVIOUS}|{_scratch_names(NEW)}")
"""All that lies in a scratch folder, where what is new is itself written by this module too."""


@contextmanager
def replacing_folder(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of `out` when the block ends without an error.

    It lies beside `out`, so that one step is enough: what was at `out` stays whole until then.
    Where the system has no such step there are two, and it comes back where the second fails.
    Nothing else is left behind, but by a kill or a loss of power: then `put_away` does the rest.
    """
    target = out.resolve()  # X/../X means nothing while X is away
    with _beside(out) as scratch:
        folder = scratch / NEW
        folder.mkdir()
        yield folder
        if not _swapped(folder, target):
            _exchange(folder, target, scratch / PREVIOUS)


def replace_folder(folder: Path, out: Path) -> None:
    """Let `folder`, of the same file system, take the place of `out`, as `replacing_folder` does.

    A kill between the two renames leaves `folder` whole, and `put_away` brings back `out`.
    """
    folder, target = folder.resolve(), out.resolve()
    with _beside(out) as scratch:
        _exchange(folder, target, scratch / PREVIOUS)


def put_away(out: Path) -> None:
    """Finish what a process that was killed left beside `out`: all but the former folder goes.

    Scratch folders of processes that live are locked and stay, and so does everything where the
    disk has no locks. Raises OSError.
    """
    place = out.resolve()
    if not place.name or not place.parent.is_dir():
        return
    ours = re.compile(_scratch_names(place.name))
    for scratch in [path for path in place.parent.iterdir() if ours.fullmatch(path.name)]:
        if scratch.is_symlink() or not all(map(INSIDE.fullmatch, os.listdir(scratch))):
            continue
        with _locked(scratch) as is_ours:
            if is_ours:
                if (scratch / PREVIOUS).exists() and not place.exists():
                    os.replace(scratch / PREVIOUS, place)
                shutil.rmtree(scratch)


def name_it(path: Path, error: BaseException) -> None:
    """Let an error of the disk, as of a full one, say what could not be written."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        error.filename = str(path)


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A scratch folder, locked for as long as this process needs it."""
    with unwinding():
        try:
            place = out.resolve()
            place.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(PART, f".{place.name}-", place.parent))
            try:
                with _locked(scratch):
                    yield scratch
            finally:
                # A disk that lets neither folder back to its place keeps the former one in here.
                if place.exists() or not (scratch / PREVIOUS).exists():
                    shutil.rmtree(scratch, ignore_errors=True)
        except OSError as error:
            name_it(out, error)
            raise


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder in the block; False where another process has, or nobody can.

    A kill ends a lock with its process.
    """
    try:
        import fcntl

        number = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield False
        return
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = True
    except OSError:
        is_ours = False
    try:
        yield is_ours
    finally:
        os.close(number)


def _swapped(one: Path, other: Path) -> bool:
    """Exchange two folders in one step. False where there is no other one, or no such step.

    Linux has one, on most disks: rename(2), RENAME_EXCHANGE.
    """
    if sys.platform != "linux" or not other.exists():
        return False
    import ctypes  # here, for the speed of a start

    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # musl's old versions lack it
    current, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    names = (current, os.fsencode(one), current, os.fsencode(other))
    return rename is not None and rename(*names, exchange) == 0


def _exchange(folder: Path, out: Path, previous: Path) -> None:
    """In two renames; the scratch folder around `previous` takes the older one away."""
    try:
        if out.exists():
            os.replace(out, previous)
        os.replace(folder, out)
    except BaseException:
        if previous.exists() and not out.exists():
            os.replace(previous, out)
        raise
