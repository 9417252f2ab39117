"""Files that appear whole or not at all; folders that may be replaced. Standard library only."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

from recsys_moe.errors import ConfigError, DataError
from recsys_moe.folders import MAKER, PART, locked, name_it, put_away
from recsys_moe.interrupts import unwinding

TEXT = {".csv": ",;\t|", ".txt": ",;\t|", ".tsv": "\t", ".tab": "\t"}
"""Suffix of a table in text -> separators that it may have: see `separator`."""
PARQUET = (".parquet", ".pq")
HALF_WRITTEN = re.compile(rf"\.([^/]+)-{MAKER}-\w{{8}}{re.escape(PART)}$")
"""Names of files while they are written, with what they are to be called."""


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

    For writers that open files themselves. It is a new one: neither a link that waits there nor
    the output of another process is in its place. Nothing is left behind after an error; what a
    kill leaves, `check_output` puts away.
    """
    with unwinding(), ExitStack() as locks:
        part = None
        try:
            while part is None or not part.exists():  # `check_output` may be quicker than the lock
                part = path.with_name(f".{path.name}-{MAKER}-{secrets.token_hex(4)}{PART}")
                os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
                locks.enter_context(locked(part, wait=True, folder=False))
            yield part
            if keep is not None and path.exists():
                os.replace(path, keep)
            os.replace(part, path)
        except BaseException as error:
            if part is not None:
                part.unlink(missing_ok=True)
            name_it(path, error)
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


@dataclass(frozen=True)
class Kind:
    """Folders that a command makes: how one is recognised, and what it may hold."""

    name: str
    """With its article: `a run folder`."""
    is_whole: Callable[[Path], bool]
    """By what its own files say; an OSError, ValueError, LookupError or TypeError means no."""
    files: tuple[str, ...]
    """Relative paths, * for any text, of all that may lie in one; with PART behind them too."""


ANEW = "choose another folder or replace it with --overwrite"


def check_out(
    out: Path,
    kind: Kind,
    overwrite: bool,
    inputs: Mapping[str, Path | None] | None = None,
    *,
    remedy: str = ANEW,
) -> None:
    """Raise ConfigError when `out` must not be replaced; every command asks here, before its work.

    With `overwrite` a whole folder of its kind gives way, with nothing else in it. `inputs`: what
    is read, by option; never deleted. `remedy` follows `exists; ` where --overwrite would help.
    What a kill left beside it is put away first.
    """
    check_place(out, inputs)
    put_away(out)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out.is_dir() and is_whole(out, kind)):
        raise ConfigError(f"--out {out} exists and is not {kind.name}; choose another folder")
    for path in _paths_in(out):
        if not any(fnmatch(_finished(path), pattern) for pattern in kind.files):
            raise ConfigError(
                f"--out {out} holds {path}, which is not of {kind.name}; "
                "move it away or choose another folder"
            )
    if not overwrite:
        raise ConfigError(f"--out {out} exists; {remedy}")


def check_place(out: Path, inputs: Mapping[str, Path | None] | None = None) -> None:
    """Raise ConfigError for a folder that no command may replace, whatever it holds."""
    if out.is_symlink():
        raise ConfigError(f"--out {out} is a symbolic link; name the folder that it points to")
    kept = {"the current folder": Path.cwd(), "the home folder": Path("~").expanduser()}
    kept |= {f"{name} {path}": path for name, path in (inputs or {}).items() if path is not None}
    for name, path in kept.items():
        place = path.resolve()
        if out.resolve() in (place, *place.parents):
            raise ConfigError(f"--out {out} is or holds {name}; choose another folder")
    _check_writable("--out", out)


def check_output(output: Path, overwrite: bool) -> None:
    """Raise ConfigError when the file --output must not or cannot be written."""
    if output.is_dir():
        raise ConfigError(f"--output {output} is a folder; name a file")
    if output.exists() and not overwrite:
        raise ConfigError(f"--output {output} exists; pass --overwrite to replace it")
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: no such folder {output.parent}")
    _check_writable("--output", output)
    with suppress(OSError):  # as in a folder that must not be listed
        _put_away_parts(output)


def _put_away_parts(output: Path) -> None:
    """Remove what a process that was killed left of a file; whoever writes one has locked it."""
    for part in output.parent.iterdir():
        half_written = HALF_WRITTEN.fullmatch(part.name)
        if half_written and half_written[1] == output.name:
            with locked(part, folder=False) as is_ours:
                if is_ours:
                    part.unlink()


def _finished(path: str) -> str:
    """The name that a file gets when it is written."""
    return HALF_WRITTEN.sub(r"\1", path).removesuffix(PART)


def _check_writable(option: str, path: Path) -> None:
    """The nearest folder there is must let us write; a file system may be read-only for all."""
    place = next(place for place in path.absolute().parents if place.exists())
    if not place.is_dir():
        raise ConfigError(f"{option} {path} cannot be written: {place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{option} {path} cannot be written: {place} is read-only; choose another folder"
        )


def is_whole(out: Path, kind: Kind) -> bool:
    """Does `out` hold a folder of its kind, as its own files say?"""
    try:
        return kind.is_whole(out)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _paths_in(folder: Path) -> Iterator[str]:
    """Relative paths of all but real folders, in order; a link to a folder is no real one."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in sorted([*files, *links]):
            yield (Path(place) / name).relative_to(folder).as_posix()


def read_object(path: Path) -> dict[str, Any]:
    """A file's JSON object. Raises OSError and ValueError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested without end") from None
    if not isinstance(content, dict):
        raise ValueError(f"it must hold a JSON object, got {type(content).__name__}")
    return content


def read_record(path: Path, remedy: str) -> dict[str, Any]:
    """What a command has written of itself. Raises DataError with `remedy` where it is damaged."""
    try:
        return read_object(path)
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}; {remedy}") from None


def check_kind(path: Path) -> None:
    """Raise DataError for what is no file; a pipe would be waited for without end."""
    if (path.exists() or path.is_symlink()) and not path.is_file():
        raise DataError(f"{path} must be a file; prepare the data again")


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
