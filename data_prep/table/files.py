"""Files of a user's own: CSV, TSV, JSON Lines or Parquet, one, a folder or a zip of them.

Cells of text files stay text, so that an id like 007 keeps its zeros.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.read import delimited
from data_prep.read.bad_rows import BadRows
from data_prep.read.delimited import Layout
from data_prep.read.raw_files import RawFiles, unpacked
from data_prep.table import json_lines
from data_prep.table.frame import Frame, Place
from recsys_moe import encodings
from recsys_moe.encodings import UTF8
from recsys_moe.files import PARQUET, TEXT, separator, sha256_file, table_suffix
from recsys_moe.schema import DataError, Source

TABLES = (*TEXT, *PARQUET)
ZIP = ".zip"
KINDS = (*TABLES, *json_lines.SUFFIXES, ZIP)


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """Columns of one file, and the way back from a row to its place in the file."""

    label: str
    columns: pa.Table
    first: int = 0
    """Rows of the file before `columns`."""
    is_text: bool = False
    """Whether cells are text, whatever they say."""
    line: Callable[[int], int] | None = None
    """Of a row of `columns` (from 0); None for Parquet, or where the text is not at hand."""

    def place(self, row: int) -> str:
        """Where row `row` (from 0) is, for messages."""
        if self.line is None:
            return f"{self.label}, row {self.first + row + 1}"
        return f"{self.label}, line {self.line(row)}"


def read(
    path: Place, columns: list[str] | None, bad: BadRows, encoding: str = UTF8
) -> list[TableFile]:
    """The file, or those of the folder or zip by name, with `columns` (None: all), no `bad` lines.

    Raises DataError naming the file (and line) that is missing, damaged or without a column.
    """
    if isinstance(path, Frame):
        return [TableFile(label=path.label, columns=path.table(columns))]
    return [
        _read_file(label, source, columns, bad=bad, encoding=encoding)
        for file in files_at(path)
        for label, source in _contents(file)
    ]


def files_at(path: Path) -> list[Path]:
    """The file, or the files of the folder by name. Raises DataError when there is none.

    JSON Lines of a folder are read where it has no other table.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    inside = sorted(path.iterdir()) if path.is_dir() else [path]
    files = inside if not path.is_dir() else []
    for kinds in (TABLES, json_lines.SUFFIXES):
        files = files or [file for file in inside if table_suffix(file) in kinds]
    if not files:
        raise DataError(f"{path}: has no {', '.join((*TABLES, *json_lines.SUFFIXES))} file")
    for file in files:
        if not file.is_file():  # reading a pipe would block
            raise DataError(
                f"{file}: must be a file or a folder of files, not a pipe: it is read twice"
            )
    return files


def is_parquet(path: Path) -> bool:
    """By its name. Raises DataError for a file of no kind that can be read."""
    if table_suffix(path) not in KINDS:
        raise DataError(f"{path}: must be one of {', '.join(KINDS)} (or .gz of it)")
    return table_suffix(path) in PARQUET


def sources(*places: Place) -> tuple[Source, ...]:
    """Names and hashes of all files at `places`; a DataFrame has none."""
    paths = [path for place in places if isinstance(place, Path) for path in files_at(place)]
    return tuple(
        Source(name=path.name, sha256=sha256_file(path), bytes=path.stat().st_size)
        for path in paths
    )


def _contents(path: Path) -> Iterator[tuple[str, Path | bytes]]:
    """What a file is called in messages, with its path; of a zip its tables, with their content."""
    if table_suffix(path) != ZIP:
        yield str(path), path
        return
    archive = RawFiles(path)
    names = [name for name in archive.names if table_suffix(Path(name)) in KINDS[:-1]]
    if not names:
        raise DataError(f"{path}: has no {', '.join(KINDS[:-1])} file")
    for name in names:
        yield f"{path}/{name}", archive.read(name)


def _read_file(
    label: str, source: Path | bytes, columns: list[str] | None, *, bad: BadRows, encoding: str
) -> TableFile:
    name = Path(label)
    if is_parquet(name):
        with parquet(source, columns or [], label) as file:
            return TableFile(label=label, columns=file.read(columns=columns))
    text = encodings.to_utf8(_text(source, label), encoding, label)
    if table_suffix(name) in json_lines.SUFFIXES:
        lines = text.decode("utf-8-sig").split("\n")
        ((table, numbers),) = json_lines.tables(lines, columns, label, bad=bad, most=None)
        return TableFile(label=label, columns=table, is_text=True, line=numbers.__getitem__)
    layout = text_layout(text, name, columns)
    table, text = delimited.read_lines(text, layout, label, bad)
    return TableFile(
        label=label,
        columns=table,
        is_text=True,
        line=lambda row: delimited.line_of_row(text, layout, row, label),
    )


def _text(source: Path | bytes, label: str | None = None) -> bytes:
    label = label or str(source)
    try:
        data = source.read_bytes() if isinstance(source, Path) else source
        if not label.endswith(".gz"):
            return data
        with gzip.open(io.BytesIO(data)) as stream:
            return unpacked(stream, len(data), label)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{label}: is not a whole gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{label}: cannot be read: {error.strerror or error}") from None


@contextmanager
def parquet(
    source: Path | bytes, columns: list[str], label: str | None = None
) -> Iterator[pq.ParquetFile]:
    """The file, open. Raises DataError when it is damaged or without one of `columns`."""
    label = label or str(source)
    try:
        with pq.ParquetFile(
            source if isinstance(source, Path) else delimited.arrow_reader(source)
        ) as file:
            delimited.check_columns(label, columns, file.schema_arrow.names)
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{label}: is not a whole Parquet file ({reason})") from None


def text_layout(text: bytes, path: Path, columns: list[str] | None) -> Layout:
    """How a text file that begins with `text` is laid out. Raises DataError for another kind."""
    header = text.split(b"\n", 1)[0].decode("utf-8-sig")
    between = separator(header, table_suffix(path))
    names = delimited.header(text, between, str(path))
    delimited.check_columns(str(path), columns or names, names)
    kinds = dict.fromkeys(columns or names, pa.string())
    return Layout(separator=between, columns=kinds, header=True, quoted=True)
