"""Strict reading of delimited text: every line has its columns and types, or is named."""

from __future__ import annotations

import codecs
import csv
import io
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from data_prep.options import did_you_mean
from data_prep.read.bad_rows import BadRows
from recsys_moe.schema import DataError

_ONE_BYTE = "\x1f"
HEADER_RULE = "column names in the first line must be plain text without line breaks"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a file is laid out; `columns` gives names and types in the order of the file."""

    separator: str
    columns: dict[str, pa.DataType]
    header: bool = False
    quoted: bool = False
    """Whether a field may be "quoted", with quotes inside it doubled."""

    @property
    def delimiter(self) -> str:
        """One byte: readers in C want no more, so `::` is replaced before reading."""
        return self.separator if len(self.separator) == 1 else _ONE_BYTE


def read_lines(data: bytes, layout: Layout, label: str, bad: BadRows) -> tuple[pa.Table, bytes]:
    """The columns of `data` (`label` names the file), and the data for line_of_row().

    Text is UTF-8, or else Latin-1. Lines that are skipped are empty in the data. Raises DataError
    naming the first line that has another number of fields or a field of another type.
    """
    data = _one_byte_delimiter(utf8(data), layout)
    if layout.header:
        check_columns(label, layout.columns, header(data, layout.delimiter, label))
    try:
        return pa_csv.read_csv(arrow_reader(data), **_options(layout)), data
    except pa.ArrowKeyError:  # an end of line or a zero byte in a name
        raise DataError(f"{label}: {HEADER_RULE}") from None
    except pa.ArrowInvalid as error:
        if not data.removeprefix(codecs.BOM_UTF8).strip():
            raise DataError(f"{label}: the file is empty; fetch it again") from None
        data = _without_wrong_lines(data, layout, label, bad)
        if not data.strip():
            raise DataError(f"{label}: {bad.count} lines are bad, {bad.listed[0]}") from None
        if not bad.skip:
            raise DataError(f"{label}: {str(error).splitlines()[0]}") from None
    return read_lines(data, layout, label, BadRows())


def arrow_reader(data: bytes) -> pa.BufferReader:
    """`data` to be read by pyarrow (as of 26.0), in memory of its own.

    Its threads may let go of what they read when Python is ending already; to let go of an object
    of Python's then ends the process by an abort.
    """
    own = pa.allocate_buffer(len(data))
    memoryview(own).cast("B")[:] = data
    return pa.BufferReader(own)


def batches(
    stream: pa.NativeFile, layout: Layout, block: int, label: str, bad: BadRows
) -> Iterator[pa.RecordBatch]:
    """The columns of a file with a header in UTF-8, in pieces of about `block` bytes.

    Raises ArrowInvalid, in which a row is counted and not placed.
    """
    options = _options(layout, block_size=block, use_threads=False)

    def skipped(row: pa_csv.InvalidRow) -> str:
        rule = _width_rule(row.expected_columns, layout, row.actual_columns)
        bad.add(f"{label}, row {row.number - 1}: {rule}")
        return "skip"

    if bad.skip:
        options["parse_options"].invalid_row_handler = skipped
    try:
        yield from pa_csv.open_csv(stream, **options)
    except pa.ArrowKeyError:
        raise DataError(f"{label}: {HEADER_RULE}") from None


def header(data: bytes, delimiter: str, label: str) -> list[str]:
    """The column names in the first line of UTF-8 text. Raises DataError."""
    first = data.split(b"\n", 1)[0].decode("utf-8-sig").rstrip("\r").replace("\0", "?")
    try:
        return next(csv.reader([first], delimiter=delimiter), [])
    except csv.Error:  # a carriage return inside, or a name without end
        raise DataError(f"{label}: {HEADER_RULE}") from None


def line_of_row(data: bytes, layout: Layout, row: int, label: str) -> int:
    """Line number (from 1) of row `row` (from 0) of read_lines(). Slow: for errors."""
    records = _records(_one_byte_delimiter(utf8(data), layout), layout, label)
    return next(line for number, (line, _) in enumerate(records) if number == row)


def check_columns(label: str, wanted: Iterable[str], names: list[str]) -> None:
    """Raises DataError for the first of `wanted` that a file has not once among its `names`."""
    for name in wanted:
        if name not in names:
            raise missing_column(label, name, names)
        if names.count(name) > 1:
            raise DataError(f"{label}: column {name!r} appears twice; rename one of them")


def missing_column(label: str, wanted: str, names: list[str]) -> DataError:
    """The error for a file that has the columns `names` but not `wanted`."""
    return DataError(
        f"{label}: column {wanted!r} is missing; it has {', '.join(names) or 'none'}"
        f"{did_you_mean(wanted, names)}"
    )


def shown(cell: object) -> str:
    """A value from a file as messages show it: cut short if it is long."""
    return "null" if cell is None else reprlib.repr(cell)


def utf8(data: bytes) -> bytes:
    """`data` as UTF-8: bytes that are not valid UTF-8 are taken to be Latin-1."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1").encode("utf-8")
    return data


def _one_byte_delimiter(data: bytes, layout: Layout) -> bytes:
    if layout.delimiter == layout.separator:
        return data
    return data.replace(layout.separator.encode(), layout.delimiter.encode())


def _options(layout: Layout, **reading: Any) -> dict[str, Any]:
    return {
        "read_options": pa_csv.ReadOptions(
            column_names=None if layout.header else list(layout.columns), **reading
        ),
        "parse_options": pa_csv.ParseOptions(
            delimiter=layout.delimiter,
            quote_char='"' if layout.quoted else False,
            newlines_in_values=layout.quoted,
        ),
        "convert_options": pa_csv.ConvertOptions(
            column_types=layout.columns,
            include_columns=list(layout.columns),
            null_values=[],
            strings_can_be_null=False,
        ),
    }


def _without_wrong_lines(data: bytes, layout: Layout, label: str, bad: BadRows) -> bytes:
    """The lines of every malformed record made empty. Raises DataError unless they are skipped."""
    names = header(data, layout.delimiter, label) if layout.header else list(layout.columns)
    kinds = [layout.columns.get(name, pa.string()) for name in names]
    lines = list(io.StringIO(data.decode("utf-8-sig"), newline=""))  # those that csv counts
    end = int(layout.header)
    for line, fields in _records(data, layout, label):
        rule = _broken_rule(fields, names, kinds, layout)
        if rule is not None:
            if not bad.skip:
                raise bad.error(f"{label}, line {line}: {rule}")
            bad.add(f"{label}, line {line}: {rule}")
            lines[end:line] = ["\n"] * (line - end)
        end = line
    return "".join(lines).encode()


def _broken_rule(
    fields: list[str], names: list[str], kinds: list[pa.DataType], layout: Layout
) -> str | None:
    """What the fields of a record break, if anything."""
    if len(fields) != len(names):
        return _width_rule(len(names), layout, len(fields))
    for name, kind, field in zip(names, kinds, fields, strict=True):
        if not _fits(field, kind):
            wanted = "a number" if pa.types.is_floating(kind) else "an integer"
            return f"{name} must be {wanted}, got {shown(field)}"
    return None


def _width_rule(width: int, layout: Layout, got: int) -> str:
    return f"must have {width} fields separated by {layout.separator!r}, got {got}"


def _records(data: bytes, layout: Layout, label: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every row, without the header and blank lines."""
    text = io.StringIO(data.decode("utf-8-sig"), newline="")
    reader = csv.reader(
        text,
        delimiter=layout.delimiter,
        quoting=csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE,
    )
    try:
        if layout.header:
            next(reader, None)
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:  # a field without end, or a zero byte before Python 3.11
        raise DataError(f"{label}, line {reader.line_num}: {error}; is a quote missing?") from None


def _fits(field: str, kind: pa.DataType) -> bool:
    if pa.types.is_string(kind):
        return True
    try:
        pa.scalar(field).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
