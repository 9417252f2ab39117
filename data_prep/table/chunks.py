"""Files of a user's own in pieces: a Parquet file by row group, a text file from front to back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from data_prep.read import delimited
from data_prep.table import files as table_files
from data_prep.table.files import TableFile
from recsys_moe.schema import DataError

ROWS = 1 << 18
"""Most rows of a Parquet file at once."""
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


def pieces(place: Path) -> list[Piece]:
    """A file, or the files of a folder by name, in pieces. Raises DataError naming the file."""
    return [piece for path in table_files.files_at(place) for piece in _pieces(path)]


def _pieces(path: Path) -> Iterator[Piece]:
    if not table_files.is_parquet(path):
        packed = _MOST_PACKED if path.name.endswith(".gz") else 1
        rows = path.stat().st_size * packed // _FEWEST_BYTES
        yield Piece(path=path, group=None, first=0, most_rows=rows)
        return
    with table_files.parquet(path, []) as file:
        sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    for group, (rows, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        yield Piece(path=path, group=group, first=end - rows, most_rows=rows)


def read(piece: Piece, columns: list[str]) -> Iterator[TableFile]:
    """The rows of a piece, some at a time; a row is named by its number in the file."""
    first = piece.first
    for batch in _parquet(piece, columns) if piece.group is not None else _text(piece, columns):
        table = pa.Table.from_batches([batch])
        yield TableFile(label=str(piece.path), columns=table, first=first)
        first += len(table)


def _parquet(piece: Piece, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with table_files.parquet(piece.path, columns) as file:
        yield from file.iter_batches(ROWS, row_groups=[piece.group], columns=columns)


def _text(piece: Piece, columns: list[str]) -> Iterator[pa.RecordBatch]:
    path = piece.path
    packing = "gzip" if path.name.endswith(".gz") else None
    try:
        with pa.input_stream(str(path), compression=packing) as stream:
            head = stream.read(TEXT_BLOCK)
        layout = table_files.text_layout(head, path, columns)
        delimited.check_columns(str(path), columns, delimited.header(head, layout.separator))
        with pa.input_stream(str(path), compression=packing) as stream:
            yield from delimited.batches(stream, layout, TEXT_BLOCK)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path}: cannot be read in pieces ({reason}); --engine memory tells the line"
        ) from None
