"""Decodes text files; errors name the line of the first invalid byte."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from recsys_moe.errors import ConfigError, DataError

UTF8 = "utf-8"
PIECE = 1 << 20
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_HEAD = 64


def known(name: str) -> str:
    """Python's name of an encoding. Raises ConfigError for an unknown one."""
    try:
        "id,1\n".encode(name)
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise ConfigError(
            f"--encoding must be an encoding of Python, e.g. utf-8, utf-16 or cp1252, got {name!r}"
        ) from None


def reader(name: str) -> str:
    """The encoding to decode with: `name`, without a byte order mark in the text."""
    return "utf-8-sig" if name == UTF8 else name


def to_utf8(data: bytes, name: str, label: str) -> bytes:
    """`data` in UTF-8. Raises DataError naming the first line that is not in encoding `name`."""
    check_head(data, name, label)
    try:
        text = data.decode(name)
    except UnicodeDecodeError:
        check([data], name, label)
        raise
    return data if name == UTF8 else text.encode(UTF8)


def check(pieces: Iterable[bytes], name: str, label: str, *, option: bool = True) -> None:
    """Raise DataError naming the first line of a file that is not in encoding `name`.

    `option`: whether the command has --encoding, which the error then recommends.
    """
    decoder, line = codecs.getincrementaldecoder(name)(), 1
    for number, piece in enumerate(_ended(pieces)):
        if number == 0:
            check_head(piece, name, label, option=option)
        kept = len(decoder.getstate()[0])
        try:
            line += decoder.decode(piece, final=not piece).count("\n")
        except UnicodeDecodeError as error:
            line += decoder.decode(piece[: max(0, error.start - kept)]).count("\n")
            wrong = f"{label}, line {line}: byte 0x{error.object[error.start]:02x}"
            if name != UTF8:
                raise DataError(f"{wrong} is not {name}; pass another --encoding") from None
            other = ", or pass its --encoding, such as cp1252" if option else ""
            raise DataError(f"{wrong} is not UTF-8; save the file as UTF-8{other}") from None


def check_head(head: bytes, name: str, label: str, *, option: bool = True) -> None:
    """Raise DataError for UTF-16 or UTF-32 read as UTF-8 or without a byte order mark."""
    if len(head) > 3 and name in _MARKS.values() and not any(map(head.startswith, _MARKS)):
        raise DataError(f"{label}: no byte order mark; pass --encoding {name}-le or {name}-be")
    other = _wide(head) if name == UTF8 else None
    if other is not None:
        remedy = f"pass --encoding {other}" if option else "save the file as UTF-8"
        raise DataError(f"{label}: encoding is {other.upper()}, must be UTF-8; {remedy}")


def check_file(path: Path, name: str, label: str, *, option: bool = True) -> None:
    """`check` of a file, compressed by gzip or not."""
    import pyarrow as pa

    with pa.input_stream(str(path)) as stream:
        check(_pieces(stream), name, label, option=option)


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: stream.read(PIECE), b"")


def _ended(pieces: Iterable[bytes]) -> Iterator[bytes]:
    yield from filter(None, pieces)
    yield b""


def _wide(data: bytes) -> str | None:
    """UTF-16 or UTF-32 by the byte order mark, or UTF-16 by the zero in every character."""
    marked = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    even, odd = data[0:_HEAD:2], data[1:_HEAD:2]
    if marked is None and 0 not in even and odd.count(0) > len(even) // 2:
        return "utf-16-le"
    if marked is None and 0 not in odd and even.count(0) > len(odd) // 2:
        return "utf-16-be"
    return marked
