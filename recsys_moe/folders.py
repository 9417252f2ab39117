"""Folders that appear whole or not at all. Standard library only."""

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
"""Ending of what is being written."""
NEW, PREVIOUS, GONE = "new", "previous", "gone"
"""What may lie in a scratch folder: what is being written, what it replaces, what it replaced."""
MAKER = "recsys-moe"
"""In the names of scratch folders, so that a folder of somebody else is none."""


def _scratch_names(name: str) -> str:
    """Of the scratch folders beside a folder, as a regular expression."""
    return rf"\.{re.escape(name)}-{MAKER}-\w{{8}}{re.escape(PART)}"


INSIDE = re.compile(rf"{NEW}|{PREVIOUS}|{GONE}|{_scratch_names(NEW)}")
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
    """Finish what a process that was killed left beside `out`: the former folder comes back.

    It stays where it is when something else is at `out` by now. Scratch folders of processes that
    live are locked and stay, and so does everything where the disk has no locks. Raises OSError.
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
            with _scratch(place) as scratch:
                try:
                    yield scratch
                finally:
                    # A disk that lets neither folder to its place keeps the former one in here.
                    if place.exists() or not (scratch / PREVIOUS).exists():
                        shutil.rmtree(scratch, ignore_errors=True)
        except OSError as error:
            name_it(out, error)
            raise


@contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A locked one. A process that puts away may take it before it is locked: then another."""
    with ExitStack() as locks:
        scratch = None
        while scratch is None or not scratch.is_dir():
            scratch = Path(tempfile.mkdtemp(PART, f".{place.name}-{MAKER}-", place.parent))
            locks.enter_context(locked(scratch, wait=True))
        yield scratch


@contextmanager
def locked(place: Path, wait: bool = False, *, folder: bool = True) -> Iterator[bool]:
    """Lock a folder, or a file, in the block; False where another process has, nobody can, or it
    is none.

    A kill ends a lock with its process.
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
        with suppress(OSError):  # none, or a disk that fails: then it stays
            os.replace(previous, previous.with_name(GONE))
    except BaseException:
        if previous.exists() and not out.exists():
            os.replace(previous, out)
        raise
