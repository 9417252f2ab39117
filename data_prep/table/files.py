"""Files of a user's own: CSV, TSV or Parquet, one or a folder of them, read without guessing.

read() gives whole files; read_piece() a Parquet file by row group, a text file from front to back.

Cells of text files stay text, so that an id like 007 keeps its zeros.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.read import delimited
from data_prep.read.bad_rows import OPTION, BadRows
from data_prep.read.delimited import Layout
from data_prep.read.unpacking import unpacked
from recsys_moe.files import PARQUET, TEXT, separator, sha256_file, table_suffix
from recsys_moe.schema import DataError, Source

ROWS = 1 << 18
"""Most rows of a Parquet file at once."""
TEXT_BLOCK = 1 << 23
"""Bytes of a text file at once."""
_FEWEST_BYTES = 4
"""Of a row of text: two ids of one character, a separator and a line break."""
_MOST_PACKED = 20
"""How much smaller than its content a .gz is at most, as rows of numbers go."""


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """Columns of one file, and the way back from a row to its place in the file."""

    label: str
    columns: pa.Table
    text: bytes = b""
    layout: Layout | None = None
    """How `text` is laid out; None for Parquet, or where the text is not at hand."""
    first: int = 0
    """Rows of the file before `columns`."""

    def place(self, row: int) -> str:
        """Where row `row` (from 0) is, for messages."""
        if self.layout is None:
            return f"{self.label}, row {self.first + row + 1}"
        line = delimited.line_of_row(self.text, self.layout, row, self.label)
        return f"{self.label}, line {line}"


def read(path: Path, columns: list[str] | None, bad: BadRows) -> list[TableFile]:
    """The file, or the files of the folder by name, with `columns` (None: all) and no `bad` lines.

    Raises DataError naming the file (and line) that is missing, damaged or without a column.
    """
    return [_read_file(file, columns, bad) for file in files_at(path)]


def files_at(path: Path) -> list[Path]:
    """The file, or the files of the folder by name. Raises DataError when there is none."""
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if table_suffix(file) in (*TEXT, *PARQUET))
    if not files:
        raise DataError(f"{path}: has no {', '.join((*TEXT, *PARQUET))} file")
    return files


def is_parquet(path: Path) -> bool:
    """By its name. Raises DataError for a file of no kind that can be read."""
    if table_suffix(path) not in (*TEXT, *PARQUET):
        raise DataError(f"{path}: must be one of {', '.join((*TEXT, *PARQUET))} (or .gz of it)")
    return table_suffix(path) in PARQUET


def sources(*places: Path | None) -> tuple[Source, ...]:
    """Names and hashes of all files at `places`."""
    paths = [path for place in places if place is not None for path in files_at(Path(place))]
    return tuple(
        Source(name=path.name, sha256=sha256_file(path), bytes=path.stat().st_size)
        for path in paths
    )


def _read_file(path: Path, columns: list[str] | None, bad: BadRows) -> TableFile:
    if is_parquet(path):
        with parquet(path, columns or []) as file:
            return TableFile(label=str(path), columns=file.read(columns=columns))
    text = delimited.utf8(_text(path))
    layout = text_layout(text, path, columns)
    table, text = delimited.read_lines(text, layout, str(path), bad)
    return TableFile(label=str(path), columns=table, text=text, layout=layout)


def _text(path: Path) -> bytes:
    try:
        if not path.name.endswith(".gz"):
            return path.read_bytes()
        with gzip.open(path) as stream:
            return unpacked(stream, path.stat().st_size, str(path))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is not a whole gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


@contextmanager
def parquet(path: Path, columns: list[str]) -> Iterator[pq.ParquetFile]:
    """The file, open. Raises DataError when it is damaged or without one of `columns`."""
    try:
        with pq.ParquetFile(path) as file:
            delimited.check_columns(str(path), columns, file.schema_arrow.names)
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: is not a whole Parquet file ({reason})") from None


def text_layout(text: bytes, path: Path, columns: list[str] | None) -> Layout:
    """How a text file that begins with `text` is laid out. Raises DataError for another kind."""
    header = text.split(b"\n", 1)[0].decode("utf-8-sig")
    between = separator(header, table_suffix(path))
    names = delimited.header(text, between, str(path)) if columns is None else columns
    kinds = dict.fromkeys(names, pa.string())
    return Layout(separator=between, columns=kinds, header=True, quoted=True)


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
    return [piece for path in files_at(place) for piece in _pieces(path)]


def _pieces(path: Path) -> Iterator[Piece]:
    if not is_parquet(path):
        packed = _MOST_PACKED if path.name.endswith(".gz") else 1
        rows = path.stat().st_size * packed // _FEWEST_BYTES
        yield Piece(path=path, group=None, first=0, most_rows=rows)
        return
    with parquet(path, []) as file:
        sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    for group, (rows, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        yield Piece(path=path, group=group, first=end - rows, most_rows=rows)


def read_piece(piece: Piece, columns: list[str], bad: BadRows) -> Iterator[TableFile]:
    """The rows of a piece, some at a time; a row is named by its number in the file."""
    first = piece.first
    for batch in (
        _text_rows(piece, columns, bad) if piece.group is None else _parquet_rows(piece, columns)
    ):
        table = pa.Table.from_batches([batch])
        yield TableFile(label=str(piece.path), columns=table, first=first)
        first += len(table)


def _parquet_rows(piece: Piece, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with parquet(piece.path, columns) as file:
        yield from file.iter_batches(ROWS, row_groups=[piece.group], columns=columns)


def _text_rows(piece: Piece, columns: list[str], bad: BadRows) -> Iterator[pa.RecordBatch]:
    path = piece.path
    packing = "gzip" if path.name.endswith(".gz") else None
    try:
        with pa.input_stream(str(path), compression=packing) as stream:
            head = stream.read(TEXT_BLOCK)
        layout = text_layout(head, path, columns)
        delimited.check_columns(
            str(path), columns, delimited.header(head, layout.separator, str(path))
        )
        with pa.input_stream(str(path), compression=packing) as stream:
            yield from delimited.batches(stream, layout, TEXT_BLOCK, str(path), bad)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path}: cannot be read in pieces ({reason}); --engine memory tells the line, "
            f"{OPTION} leaves out lines with too few or too many fields"
        ) from None
