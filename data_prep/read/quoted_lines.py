"""Book-Crossing's files: one record per line, read line by line so that one cannot spoil another.

Fields are separated by `;` (or `,`), usually quoted; a quote inside a quoted field is doubled or
has a backslash before it. A general CSV reader would run over the end of a broken line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.read import delimited
from data_prep.read.raw_files import RawFiles
from recsys_moe.schema import DataError


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The whole lines of a file."""

    table: pa.Table
    """Text columns named by the header, and `line`: the number of every line, from 1."""
    total: int
    """How many lines there are, with those that do not have the fields of the header."""

    @property
    def broken(self) -> int:
        return self.total - len(self.table)


def read(files: RawFiles, name: str, columns: dict[str, tuple[str, ...]]) -> Lines:
    """`columns`: our name -> its names in the header. Raises DataError when half is broken."""
    label = files.label(name)
    lines = _lines(files.read(name))
    if len(lines) == 0:
        raise DataError(f"{label}: the file is empty; fetch it again")
    first = lines[0].as_py()
    separator = ";" if ";" in first else ","
    header = [name.strip().strip('"') for name in first.split(separator)]
    chosen = {ours: _column(header, names, label) for ours, names in columns.items()}
    return _whole_lines(lines[1:], label, _pattern(header, separator), chosen)


def keep(lines: Lines, good: pa.Array, label: str) -> Lines:
    """The rows for which `good` is true; the others are broken lines too."""
    kept = Lines(table=lines.table.filter(good), total=lines.total)
    if 2 * kept.broken > kept.total:
        raise DataError(
            f"{label}: {kept.broken} of {kept.total} lines are broken; "
            "is this a Book-Crossing file?"
        )
    return kept


def _lines(data: bytes) -> pa.Array:
    """Every line without its end, the empty ones included."""
    text = delimited.utf8(data).removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
    if not text:
        return pa.array([], type=pa.large_string())
    whole = pa.array([text.decode("utf-8")], type=pa.large_string())
    return pc.utf8_rtrim(pc.split_pattern(whole, "\n").values, "\r")


def _pattern(header: list[str], separator: str) -> str:
    """RE2 with one group per field, f0, f1, ...; a quoted field keeps its quotes."""
    field = rf'"(?:[^"\\]|""|\\.)*"|[^"{re.escape(separator)}]*'
    groups = (rf"\s*(?P<f{n}>{field})\s*" for n in range(len(header)))
    return "^" + re.escape(separator).join(groups) + "$"


def _column(header: list[str], names: tuple[str, ...], label: str) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise delimited.missing_column(label, names[0], header)


def _whole_lines(lines: pa.Array, label: str, pattern: str, columns: dict[str, int]) -> Lines:
    matches = pc.extract_regex(lines, pattern)
    fields = {name: pc.struct_field(matches, f"f{place}") for name, place in columns.items()}
    table = pa.table({name: _unquoted(field) for name, field in fields.items()})
    table = table.append_column("line", pa.array(np.arange(len(lines)) + 2))
    return keep(Lines(table=table, total=len(lines)), matches.is_valid(), label)


def _unquoted(field: pa.Array) -> pa.Array:
    inner = pc.replace_substring_regex(field, r'^"(.*)"$', r"\1")
    plain = pc.replace_substring_regex(pc.replace_substring(inner, '""', '"'), r"\\(.)", r"\1")
    return plain.cast(pa.string())
