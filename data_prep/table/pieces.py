"""Files of a user's own in pieces: Parquet by row group, text from front to back."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_prep.read import delimited
from data_prep.read.bad_rows import OPTION, BadRows
from data_prep.table import json_lines
from data_prep.table.files import ZIP, TableFile, files_at, is_parquet, parquet, text_layout
from recsys_moe import encodings
from recsys_moe.encodings import UTF8
from recsys_moe.files import table_suffix
from recsys_moe.schema import DataError

ROWS = 1 << 18
"""Most rows of a Parquet file, or of JSON Lines, at once."""
TEXT_BLOCK = 1 << 23
"""Bytes of a text file at once."""
_FEWEST_BYTES = 4
"""Of a row of text: two ids of one character, a separator and a line break."""
_MOST_PACKED = 20
"""How much smaller than its content a .gz is at most, as rows of numbers go."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one task reads."""

    path: Path
    group: int | None
    """Row group of a Parquet file; None: the whole text file."""
    first: int
    """Rows of the file before it."""
    most_rows: int
    """Exact for Parquet, an upper bound for text."""


def pieces_of(place: Path) -> list[Piece]:
    """A file, or the files of a folder by name, in pieces. Raises DataError naming the file."""
    return [piece for path in files_at(place) for piece in _pieces(path)]


def _pieces(path: Path) -> Iterator[Piece]:
    if table_suffix(path) == ZIP:
        raise DataError(f"{path}: needs --engine memory; pass that, or unpack it")
    if not is_parquet(path):
        packed = _MOST_PACKED if path.name.endswith(".gz") else 1
        rows = path.stat().st_size * packed // _FEWEST_BYTES
        yield Piece(path=path, group=None, first=0, most_rows=rows)
        return
    with parquet(path, []) as file:
        sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    for group, (rows, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        yield Piece(path=path, group=group, first=end - rows, most_rows=rows)


def read_piece(
    piece: Piece, columns: list[str], bad: BadRows, encoding: str = UTF8
) -> Iterator[TableFile]:
    """The rows of a piece, some at a time; a row is named by its number in the file."""
    if table_suffix(piece.path) in json_lines.SUFFIXES:
        yield from _json_rows(piece.path, columns, bad, encoding)
        return
    first = piece.first
    for batch in (
        _text_rows(piece.path, columns, bad, encoding)
        if piece.group is None
        else _parquet_rows(piece, columns)
    ):
        table = pa.Table.from_batches([batch])
        yield TableFile(label=str(piece.path), columns=table, first=first)
        first += len(table)


def _parquet_rows(piece: Piece, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with parquet(piece.path, columns) as file:
        yield from file.iter_batches(ROWS, row_groups=[piece.group], columns=columns)


def _json_rows(path: Path, columns: list[str], bad: BadRows, encoding: str) -> Iterator[TableFile]:
    with _explained(path, encoding), _opened(path, encoding) as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
        for table, numbers in json_lines.tables(lines, columns, str(path), bad=bad, most=ROWS):
            yield TableFile(label=str(path), columns=table, is_text=True, line=numbers.__getitem__)


def _text_rows(
    path: Path, columns: list[str], bad: BadRows, encoding: str
) -> Iterator[pa.RecordBatch]:
    with _explained(path, encoding):
        with _opened(path, encoding) as stream:
            layout = text_layout(stream.read(TEXT_BLOCK), path, columns)
        with _opened(path, encoding) as stream:
            yield from delimited.batches(stream, layout, TEXT_BLOCK, str(path), bad)


@contextmanager
def _opened(path: Path, encoding: str) -> Iterator[Any]:
    """The text of a file in UTF-8, as it is read."""
    packing = "gzip" if path.name.endswith(".gz") else None
    with pa.input_stream(str(path), compression=packing) as stream:
        encodings.check_head(stream.read(64), encoding, str(path))
    with pa.input_stream(str(path), compression=packing) as stream:
        # pyarrow hands a line of too few fields over as text, and prints a traceback where it is
        # no UTF-8; and bytes of columns that are not read it would not look at.
        yield pa.transcoding_input_stream(stream, encodings.reader(encoding), UTF8)


@contextmanager
def _explained(path: Path, encoding: str) -> Iterator[None]:
    """Raises DataError naming the line that is not text, or else the remedy."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        with suppress(pa.ArrowException, OSError):
            encodings.check_file(path, encoding, str(path))
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path}: cannot be read in pieces ({reason}); --engine memory names the line, "
            f"{OPTION} skips lines with too few or too many fields"
        ) from None
