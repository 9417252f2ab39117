"""The raw files of a data set, whether they lie in a folder or in a zip."""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from recsys_moe.schema import DataError, Source

DAMAGED = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, UnicodeDecodeError)
"""What zipfile raises for archives that are not whole, encrypted, or name files in no text."""
FREE = 1 << 28
"""Bytes that any file may unpack to, whatever its own size."""
MOST = 100
"""Times its own size that a file may unpack to. MovieLens' zips: about 5; deflate's bound: 1032."""
_PIECE = 1 << 20


class RawFiles:
    """Reads files by name from a folder or a zip, and remembers what was read.

    The files may lie at the top or in the data set's usual `subfolder`. A zip is read in memory;
    nothing is unpacked.
    """

    def __init__(self, place: Path, subfolder: str = "") -> None:
        """Raises DataError when `place` is neither a folder nor a whole zip file."""
        self._place = place
        self._subfolder = subfolder
        self._members = _members(place)
        self._sources: dict[str, Source] = {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """What was read so far, by name."""
        return tuple(self._sources[name] for name in sorted(self._sources))

    @property
    def names(self) -> list[str]:
        """Paths of all files, in order; of a folder down to one level below it."""
        return sorted(self._members)

    def find(self, *names: str) -> str | None:
        """The first of `names` that is there."""
        return next((name for name in names if self._member(name) is not None), None)

    def label(self, name: str) -> str:
        """How messages call the file: its full path, inside the zip if it is in one."""
        member = self._member(name)
        return f"{self._place}/{member or name}"

    def read(self, name: str) -> bytes:
        """The content of a file. Raises DataError when it is missing or damaged."""
        member = self._member(name)
        if member is None:
            raise DataError(
                f"{self._place}: {name} is missing; --source must name the folder or zip with it"
            )
        data = self._content(member)
        self._sources[name] = Source(
            name=name, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data)
        )
        return data

    def _member(self, name: str) -> str | None:
        exact = [f"{self._subfolder}/{name}", name]
        nested = sorted(m for m in self._members if m.endswith("/" + name))
        return next((m for m in exact + nested if m in self._members), None)

    def _content(self, member: str) -> bytes:
        if self._place.is_dir():
            try:
                return (self._place / member).read_bytes()
            except OSError as error:
                reason = error.strerror or error
                raise DataError(f"{self._place}/{member}: cannot be read: {reason}") from None
        with _unzipped(self._place) as archive:
            _check_packing(archive.getinfo(member), self._place)
            with archive.open(member) as stream:
                return unpacked(stream, self._place.stat().st_size, f"{self._place}/{member}")


def _members(place: Path) -> frozenset[str]:
    """Paths of the files, for a folder down to one level below it."""
    if place.is_dir():
        files = [p for pattern in ("*", "*/*") for p in place.glob(pattern) if p.is_file()]
        return frozenset(p.relative_to(place).as_posix() for p in files)
    if not place.is_file():
        raise DataError(
            f"{place}: no such file or folder; --source must name a folder, a zip or a URL"
        )
    with _unzipped(place) as archive:
        return frozenset(n for n in archive.namelist() if not n.startswith("__MACOSX"))


def _check_packing(member: zipfile.ZipInfo, place: Path) -> None:
    """Python unpacks the other kinds a block at a time, of which one may hold gigabytes."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(
            f"{place}/{member.filename}: must be stored or packed by deflate; unpack the zip "
            "and pass the folder"
        )


@contextmanager
def _unzipped(place: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(place) as archive:
            yield archive
    except DAMAGED as error:
        raise DataError(f"{place} is not a whole zip file ({error}); fetch it again") from None


def unpacked(stream: IO[bytes] | gzip.GzipFile, packed: int, label: str) -> bytes:
    """All of `stream`, which unpacks a file of `packed` bytes; what it announces is not believed.

    Raises DataError as soon as it is more than that file may unpack to.
    """
    most, found = max(FREE, MOST * packed), io.BytesIO()
    while piece := stream.read(_PIECE):
        found.write(piece)
        if found.tell() > most:
            raise DataError(
                f"{label}: must unpack to at most {most} bytes, {MOST} times its size or "
                f"{FREE >> 20} MiB; unpack it yourself if you trust it"
            )
    return found.getvalue()
