"""Atomic replacement of folders. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from recsys_moe.interrupts import unwinding

PART = ".part"
"""Suffix of what is being written."""
NEW, PREVIOUS, GONE = "new", "previous", "gone"
"""Entries of a scratch folder: what is being written, what it replaces, what it replaced."""
MAKER = "recsys-moe"
"""Part of the names of scratch folders, which no other program uses."""


def _scratch_names(name: str) -> str:
    """Regular expression of the scratch folders next to a folder."""
    return rf"\.{re.escape(name)}-{MAKER}-\w{{8}}{re.escape(PART)}"


INSIDE = re.compile(rf"{NEW}|{PREVIOUS}|{GONE}|{_scratch_names(NEW)}")
"""Every entry of a scratch folder; what is new may itself be written by this module."""


@contextmanager
def replacing_folder(out: Path) -> Iterator[Path]:
    """A new folder that replaces `out` when the block ends without an error.

    It lies next to `out`, which stays complete until both are exchanged in one step. Where the
    system has no such step there are two renames, undone if the second fails. A kill or a power
    loss leaves a scratch folder, which `put_away` removes.
    """
    target = out.resolve()  # X/../X means nothing while X is away
    with _beside(out) as scratch:
        folder = scratch / NEW
        folder.mkdir()
        yield folder
        if not _swapped(folder, target):
            _exchange(folder, target, scratch / PREVIOUS)


def replace_folder(folder: Path, out: Path) -> None:
    """Replace `out` by `folder` of the same file system, as `replacing_folder` does.

    After a kill between the two renames `put_away` restores `out`.
    """
    folder, target = folder.resolve(), out.resolve()
    with _beside(out) as scratch:
        _exchange(folder, target, scratch / PREVIOUS)


def put_away(out: Path) -> None:
    """Clean up after a process that was killed: restore `out` and remove scratch folders.

    If there is another `out` by now, the former one stays in its scratch folder. Locked scratch
    folders, of running processes, stay; without file locks all stay. Raises OSError.
    """
    place = out.resolve()
    if not place.name or not place.parent.is_dir():
        return
    ours = re.compile(_scratch_names(place.name))
    for scratch in [path for path in place.parent.iterdir() if ours.fullmatch(path.name)]:
        with suppress(FileNotFoundError), locked(scratch) as is_ours:
            if is_ours and all(map(INSIDE.fullmatch, os.listdir(scratch))):
                if (scratch / PREVIOUS).exists():
                    if place.exists():
                        continue
                    os.replace(scratch / PREVIOUS, place)
                shutil.rmtree(scratch)


def name_it(path: Path, error: BaseException) -> None:
    """Add the path to an OSError, such as of a full disk, that has none."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        error.filename = str(path)


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A scratch folder, locked in the block."""
    with unwinding():
        try:
            place = out.resolve()
            place.parent.mkdir(parents=True, exist_ok=True)
            with _scratch(place) as scratch:
                try:
                    yield scratch
                finally:
                    # If both renames failed, the former folder is in here.
                    if place.exists() or not (scratch / PREVIOUS).exists():
                        shutil.rmtree(scratch, ignore_errors=True)
        except OSError as error:
            name_it(out, error)
            raise


@contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A locked one; another process may remove it before it is locked: then another."""
    with ExitStack() as locks:
        scratch = None
        while scratch is None or not scratch.is_dir():
            scratch = Path(tempfile.mkdtemp(PART, f".{place.name}-{MAKER}-", place.parent))
            locks.enter_context(locked(scratch, wait=True))
        yield scratch


@contextmanager
def locked(place: Path, wait: bool = False, *, folder: bool = True) -> Iterator[bool]:
    """Lock a folder, or a file, in the block; False if it is locked, missing or cannot be locked.

    A lock ends with its process.
    """
    try:
        import fcntl

        kind = os.O_DIRECTORY if folder else os.O_NONBLOCK  # a pipe would wait for its other end
        number = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | kind)
    except (ImportError, OSError):
        yield False
        return
    try:
        fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        is_ours = True
    except OSError:
        is_ours = False
    try:
        yield is_ours
    finally:
        os.close(number)


def _swapped(one: Path, other: Path) -> bool:
    """Exchange two folders by rename(2), RENAME_EXCHANGE. False where that is impossible."""
    if sys.platform != "linux" or not other.exists():
        return False
    import ctypes  # here, for the speed of a start

    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # musl's old versions lack it
    current, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    names = (current, os.fsencode(one), current, os.fsencode(other))
    return rename is not None and rename(*names, exchange) == 0


def _exchange(folder: Path, out: Path, previous: Path) -> None:
    """Exchange in two renames; the former folder goes with the scratch folder of `previous`."""
    try:
        if out.exists():
            os.replace(out, previous)
        os.replace(folder, out)
        with suppress(OSError):  # none, or a disk that fails: then it stays
            os.replace(previous, previous.with_name(GONE))
    except BaseException:
        if previous.exists() and not out.exists():
            os.replace(previous, out)
        raise
