"""Atomic writes of files, and rules for replacing folders. Standard library only."""

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
"""Suffix of a text table -> possible separators."""
PARQUET = (".parquet", ".pq")
HALF_WRITTEN = re.compile(rf"\.([^/]+)-{MAKER}-\w{{8}}{re.escape(PART)}$")
"""Names of files while they are written; the group is the final name."""


def table_suffix(path: Path) -> str:
    """In lower case, without `.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def separator(header: str, suffix: str) -> str:
    """The most frequent separator in the first line of a text table."""
    return max(TEXT[suffix], key=header.count)


def write_json(path: Path, content: Any) -> None:
    """Replace `path` atomically by `content` as indented JSON."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace `path` atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as stream:
        stream.write(text.encode("utf-8"))


@contextmanager
def replacing(path: Path, *, keep: Path | None = None) -> Iterator[IO[bytes]]:
    """A stream whose content becomes `path` when the block ends without an error.

    The content is synced before the rename: neither a kill nor a power loss leaves half a file.
    `keep`: where the former file goes; between the two renames there is none.
    """
    with replacing_path(path, keep=keep) as part, part.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def replacing_path(path: Path, *, keep: Path | None = None) -> Iterator[Path]:
    """Where to write the file that becomes `path` when the block ends without an error.

    For writers that open files themselves. It is always a new file, never a link or the output of
    another process. An error leaves nothing behind; `check_output` removes what a kill leaves.
    """
    with unwinding(), ExitStack() as locks:
        part = None
        try:
            while part is None or not part.exists():  # `check_output` may be faster than the lock
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
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@dataclass(frozen=True)
class Kind:
    """A kind of folder that a command makes: how it is recognised, and what it may hold."""

    name: str
    """With its article: `a run folder`."""
    is_whole: Callable[[Path], bool]
    """From its files; an OSError, ValueError, LookupError or TypeError means False."""
    files: tuple[str, ...]
    """Patterns of relative paths that it may hold, also followed by PART."""


ANEW = "choose another folder or replace it with --overwrite"


def check_out(
    out: Path,
    kind: Kind,
    overwrite: bool,
    inputs: Mapping[str, Path | None] | None = None,
    *,
    remedy: str = ANEW,
) -> None:
    """Raise ConfigError when `out` must not be replaced; every command checks this first.

    With `overwrite` a complete folder of its kind, with nothing else in it, may be replaced.
    `inputs`: paths that are read, by option; never deleted. `remedy`: where --overwrite would help.
    What a kill left next to it is removed first.
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
                f"--out {out} holds {path}, which does not belong to {kind.name}; "
                "move it away or choose another folder"
            )
    if not overwrite:
        raise ConfigError(f"--out {out} exists; {remedy}")


def check_place(out: Path, inputs: Mapping[str, Path | None] | None = None) -> None:
    """Raise ConfigError for a folder that no command may replace."""
    if out.is_symlink():
        raise ConfigError(f"--out {out} is a symbolic link; pass the folder that it points to")
    kept = {"the current folder": Path.cwd(), "the home folder": Path("~").expanduser()}
    kept |= {f"{name} {path}": path for name, path in (inputs or {}).items() if path is not None}
    for name, path in kept.items():
        place = path.resolve()
        if out.resolve() in (place, *place.parents):
            raise ConfigError(f"--out {out} is or holds {name}; choose another folder")
    _check_writable("--out", out)


def check_output(output: Path, overwrite: bool, option: str = "--output") -> None:
    """Raise ConfigError when the file of `option` must not or cannot be written."""
    if output.is_dir():
        raise ConfigError(f"{option} {output} is a folder; pass a file")
    if output.exists() and not overwrite:
        raise ConfigError(f"{option} {output} exists; pass --overwrite to replace it")
    if not output.parent.is_dir():
        raise ConfigError(f"{option} {output}: no such folder {output.parent}")
    _check_writable(option, output)
    with suppress(OSError):  # as in a folder that must not be listed
        _put_away_parts(output)


def _put_away_parts(output: Path) -> None:
    """Remove what killed processes left of a file; one that is being written is locked."""
    for part in output.parent.iterdir():
        half_written = HALF_WRITTEN.fullmatch(part.name)
        if half_written and half_written[1] == output.name:
            with locked(part, folder=False) as is_ours:
                if is_ours:
                    part.unlink()


def _finished(path: str) -> str:
    """The final name of a file."""
    return HALF_WRITTEN.sub(r"\1", path).removesuffix(PART)


def _check_writable(option: str, path: Path) -> None:
    """Raise ConfigError unless the nearest existing folder is writable."""
    place = next(place for place in path.absolute().parents if place.exists())
    if not place.is_dir():
        raise ConfigError(f"{option} {path} cannot be written: {place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{option} {path} cannot be written: {place} is read-only; choose another folder"
        )


def is_whole(out: Path, kind: Kind) -> bool:
    """Whether `out` is a complete folder of this kind, by its own files."""
    try:
        return kind.is_whole(out)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _paths_in(folder: Path) -> Iterator[str]:
    """Relative paths of all files and links, in order."""
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
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"must hold a JSON object, got {type(content).__name__}")
    return content


def read_record(path: Path, remedy: str) -> dict[str, Any]:
    """A JSON object that a command has written. Raises DataError with `remedy` if damaged."""
    try:
        return read_object(path)
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}; {remedy}") from None


def check_kind(path: Path) -> None:
    """Raise DataError unless it is a regular file; reading a pipe would wait forever."""
    if (path.exists() or path.is_symlink()) and not path.is_file():
        raise DataError(f"{path} must be a file; prepare the data again")


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
