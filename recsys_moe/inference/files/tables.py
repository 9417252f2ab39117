"""Tables of any length, read and written in pieces: CSV, TSV, `.gz` of them, Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from recsys_moe.encodings import UTF8, check_file, reader
from recsys_moe.errors import DataError
from recsys_moe.files import PARQUET, TEXT, separator, table_suffix

ROWS_PER_PIECE = 1 << 16
DELIMITERS = {".csv": ",", ".tsv": "\t"}
OUTPUTS = (*DELIMITERS, ".parquet")
INPUTS = (*TEXT, *PARQUET)
FREE, MOST = 1 << 28, 100
"""Bytes that any file may have as a table, whatever its own size, and times its size."""


def read_whole(source: Path) -> pa.Table:
    """All rows. Raises DataError as soon as they are more than such a file may unpack to."""
    most = max(FREE, MOST * source.stat().st_size)
    pieces, found = [], 0
    for piece in read_pieces(source):
        found += piece.nbytes
        if found > most:
            raise DataError(
                f"{source} must unpack to at most {most} bytes ({MOST} times its size, or "
                f"{FREE >> 20} MiB); unpack it first if you trust it"
            )
        pieces.append(piece)
    return pa.Table.from_batches(pieces)


def read_pieces(source: Path, encoding: str | None = None) -> Iterator[pa.RecordBatch]:
    """The rows; without any, one piece with the columns. `encoding` of text; None: always UTF-8."""
    try:
        if table_suffix(source) in PARQUET:
            yield from _parquet_pieces(source)
        else:
            yield from _text_pieces(source, encoding or UTF8)
    except (pa.ArrowException, csv.Error, OSError, UnicodeError) as error:
        raise unreadable(source, error, encoding=encoding) from None


def unreadable(
    path: Path, error: Exception, *, option: str = "", encoding: str | None = None
) -> DataError:
    """What to raise for a file that cannot be read: the line that is not in the encoding, or why.

    `option` goes before its name. `encoding`: None where there is no --encoding.
    """
    label = f"{option} {path}".lstrip()
    try:
        if table_suffix(path) in TEXT:
            check_file(path, encoding or UTF8, label, option=encoding is not None)
    except DataError as named:
        return named
    except (pa.ArrowException, OSError):
        pass
    return DataError(f"{label} cannot be read: {str(error).splitlines()[0]}")


def _parquet_pieces(source: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(source) as file:
        left = file.metadata.num_rows
        if not left:
            yield pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
        for piece in file.iter_batches(batch_size=ROWS_PER_PIECE):
            left -= len(piece)
            yield piece
    if left:
        raise pa.ArrowInvalid("its row groups do not have as many rows as it says")


def _text_pieces(source: Path, encoding: str) -> Iterator[pa.RecordBatch]:
    """All columns as text: ids like 007 stay what they are, other columns pass through as typed."""
    with opened_text(source, encoding) as (lines, delimiter):
        names = next(csv.reader(lines, delimiter=delimiter), [])
        has_rows = any(line.strip() for line in lines)
    if not names:
        raise DataError(f"{source} cannot be read: the file is empty")
    kinds = dict.fromkeys(names, pa.string())
    if not has_rows:
        yield pa.RecordBatch.from_pylist([], schema=pa.schema(list(kinds.items())))
        return
    with pacsv.open_csv(
        str(source),
        read_options=pacsv.ReadOptions(encoding=encoding),
        parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(column_types=kinds),
    ) as reader:
        yield from reader


@contextmanager
def opened_text(path: Path, encoding: str = UTF8) -> Iterator[tuple[Iterator[str], str]]:
    """Lines of a table in text, with their ends, packed or not; and what separates its columns."""
    with pa.input_stream(str(path)) as stream:
        lines = io.TextIOWrapper(stream, encoding=reader(encoding), newline="")
        header = next(lines, "")
        yield chain([header], lines), separator(header, table_suffix(path))


def write_table(path: Path, suffix: str, pieces: Iterable[pa.Table], schema: pa.Schema) -> None:
    """As `suffix` says, one of OUTPUTS: a row group of Parquet per piece, or text."""
    if suffix in DELIMITERS:
        return _write_text(path, DELIMITERS[suffix], pieces, schema)
    # Predictions hardly repeat: looking each up in a dictionary takes longer than writing it.
    repeat = [field.name for field in schema if field.type != pa.float32()]
    with pq.ParquetWriter(path, schema, use_dictionary=repeat) as writer:
        for piece in pieces:
            writer.write_table(piece)


def _write_text(path: Path, delimiter: str, pieces: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Quotes where a value needs them; pyarrow's own writer quotes all text or none."""
    names = pa.table([[name] for name in schema.names], schema.names)
    with path.open("w", encoding="utf-8", newline="") as file:
        for piece in chain([names], pieces):
            columns = [_cells(*pair) for pair in zip(schema.names, piece.columns, strict=True)]
            cells, returns = zip(*columns, strict=True)
            # Before Python 3.13, csv sees no need for quotes around a carriage return.
            quoting = csv.QUOTE_ALL if any(returns) else csv.QUOTE_MINIMAL
            form: Any = {"delimiter": delimiter, "quoting": quoting, "lineterminator": "\n"}
            csv.writer(file, **form).writerows(zip(*cells, strict=True))


def _cells(name: str, column: pa.ChunkedArray) -> tuple[list[str | None], bool]:
    """The cells as text, and whether one of them has a carriage return."""
    try:
        text = column.cast(pa.string())
        return text.to_pylist(), bool(pc.any(pc.match_substring(text, "\r")).as_py())
    except (pa.ArrowException, UnicodeDecodeError):
        raise DataError(
            f"--output: column {name!r} ({column.type}) cannot be written as text; "
            "write .parquet, or remove the column"
        ) from None


def count_rows(source: Path) -> int | None:
    """Rows of a file as far as a progress bar cares: of text, its line ends; None if unknown."""
    try:
        if table_suffix(source) in PARQUET:
            return int(pq.read_metadata(source).num_rows)
        if source.suffix == ".gz":
            return None
        with source.open("rb") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b"")) - 1
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None
