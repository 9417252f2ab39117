"""Files and folders that appear whole or not at all. Standard library only."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

TEXT = {".csv": ",;\t|", ".txt": ",;\t|", ".tsv": "\t", ".tab": "\t"}
"""Suffix of a table in text -> separators that it may have: see `separator`."""
PARQUET = (".parquet", ".pq")
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
PART = ".part"
"""Ending of a file that is being written."""


def table_suffix(path: Path) -> str:
    """In lower case, without the `.gz` that a table in text may have behind it."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def separator(header: str, suffix: str) -> str:
    """Of those that a table in text may have, the most frequent one in its first line."""
    return max(TEXT[suffix], key=header.count)


def write_json(path: Path, content: Any) -> None:
    """Replace `path` in one step by `content`, indented."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace `path` in one step, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as stream:
        stream.write(text.encode("utf-8"))


@contextmanager
def _named_if_full(path: Path) -> Iterator[None]:
    """Gives an error of a full or broken disk the path that was to be written, if it has none."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_ERRORS and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path, *, keep: Path | None = None) -> Iterator[IO[bytes]]:
    """A stream whose content becomes `path` when the block ends without an error.

    The content is on the disk before it gets the name: neither a kill nor a loss of power leaves
    half a file. `keep`: where the file goes that was `path`; between the two renames there is none.
    """
    with replacing_path(path, keep=keep) as part, part.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def replacing_path(path: Path, *, keep: Path | None = None) -> Iterator[Path]:
    """Where to write the file that becomes `path` when the block ends without an error.

    For writers that open files themselves. Nothing is left behind after an error.
    """
    part = path.with_name(path.name + PART)
    try:
        with _named_if_full(path):
            yield part
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system has a call for that."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def replacing_folder(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of `out` when the block ends without an error.

    It lies beside `out`, so that a rename is enough: what was at `out` stays whole until then, and
    comes back where the last step fails. Nothing else is left behind.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as name:
        folder = Path(name) / "new"
        folder.mkdir()
        with _named_if_full(out):
            yield folder
        _replace_folder(folder, out)


def _replace_folder(folder: Path, out: Path) -> None:
    """In two renames; the temporary folder around `folder` takes the older one away."""
    previous = folder.with_name("previous")
    try:
        if out.exists():
            os.replace(out, previous)
        os.replace(folder, out)
    except BaseException:
        if previous.exists():
            os.replace(previous, out)
        raise


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
