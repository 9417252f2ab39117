"""Files with a JSON object on every line: their cells as text, as those of other text files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

from data_prep.read import delimited
from data_prep.read.bad_rows import BadRows
from data_prep.read.delimited import shown
from recsys_moe.schema import DataError

SUFFIXES = (".jsonl", ".ndjson")
LISTS = pa.list_(pa.string())


class Row(NamedTuple):
    """An object, and the line that it is on, from 1."""

    line: int
    cells: dict[str, Any]


def tables(
    lines: Iterable[str], columns: list[str] | None, label: str, *, bad: BadRows, most: int | None
) -> Iterator[tuple[pa.Table, list[int]]]:
    """`columns` (None: all) of the rows, `most` at a time, and the lines of these.

    A key that an object does not have is an empty cell. Numbers stay as they are spelled. Raises
    DataError for a column that the first of the tables does not have.
    """
    rows, is_first = _rows(lines, label, bad), True
    while (some := list(islice(rows, most))) or is_first:
        names = list(dict.fromkeys(name for row in some for name in row.cells))
        if is_first:
            delimited.check_columns(label, columns or (), names)
        wanted = names if columns is None else columns
        yield (
            pa.table({name: _column(some, name, label) for name in wanted}),
            [row.line for row in some],
        )
        is_first = False


def _rows(lines: Iterable[str], label: str, bad: BadRows) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield Row(number, _cells(line))
        except (ValueError, RecursionError) as error:
            wrong = f"{label}, line {number}: {error}"
            if not bad.skip:
                raise bad.error(wrong) from None
            bad.add(wrong)


def _cells(line: str) -> dict[str, Any]:
    """By column; raises ValueError for anything but one object of texts, numbers and lists."""
    try:
        found = json.loads(
            line,
            parse_int=str,
            parse_float=str,
            parse_constant=_no_number,
            object_pairs_hook=_once_each,
        )
    except json.JSONDecodeError as error:
        raise ValueError(
            f"must be a JSON object, got {shown(line.strip())} ({error.msg})"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(f"must be a JSON object, got {shown(line.strip())}")
    return {name: _cell(name, value) for name, value in found.items()}


def _cell(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_cell(name, one) if not isinstance(one, list) else _nested(name) for one in value]
    if isinstance(value, dict):
        _nested(name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        value.encode()  # half a character, as "\ud800", is not text
    return value


def _nested(name: str) -> NoReturn:
    raise ValueError(f"{name} must be text, a number, true, false, null or a list of these")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON; write null for a missing value")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} appears twice; leave one of them")
    return found


def _column(rows: Sequence[Row], name: str, label: str) -> pa.Array:
    values = [row.cells.get(name) for row in rows]
    lists = [isinstance(value, list) for value in values]
    if not any(lists):
        return pa.array(values, pa.string())
    for row, value, is_list in zip(rows, values, lists, strict=True):
        if value is not None and not is_list:
            first = rows[lists.index(True)].line
            raise DataError(
                f"{label}, line {row.line}: {name} must be a list or null, as it is a list in "
                f"line {first}, got {shown(value)}"
            )
    return pa.array(values, LISTS)
