"""Columns of a user's table as ids, labels and times; a wrong cell is named with its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.ids import Ints
from data_prep.read import delimited
from data_prep.read.bad_rows import BadRows, Mask
from data_prep.rows import UNKNOWN_TIME, Examples
from data_prep.table.files import TableFile
from data_prep.table.spec import Request
from recsys_moe.schema import DataError, TaskKind

Floats = NDArray[np.float64]
WEIGHT = "weight"
LABEL = "label "
"""Begins the names of the columns with labels, so that a task may have any name."""


class Cells:
    """The cells of a file, and which of its rows have none that is wrong."""

    def __init__(self, file: TableFile, bad: BadRows | None = None) -> None:
        self.file = file
        self.good = np.ones(len(file.columns), dtype=bool)
        self._bad = bad or BadRows()

    def flat(self, column: str) -> Any:
        """The column as one array, with dictionaries and long strings unfolded."""
        array = self.file.columns[column].combine_chunks()
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        return array.cast(pa.string()) if pa.types.is_large_string(array.type) else array

    def refuse(self, wrong: Mask, raw: Any, column: str, *, rule: str) -> None:
        """The rows with a wrong cell are bad. Raises DataError for the first where none may be."""

        def place_and_rule(row: int) -> str:
            got = delimited.shown(raw[row].as_py())
            return f"{self.file.place(row)}: {column} must be {rule}, got {got}"

        self._bad.check(wrong & self.good, place_and_rule)
        self.good &= ~wrong


def rows(file: TableFile, request: Request, bad: BadRows) -> tuple[pa.Table, Ints]:
    """The rows without a wrong cell, and their places in the file.

    `user` and `item` as text, "label NAME" for every task, `timestamp`; `weight` if there is.
    """
    cells = Cells(file, bad)
    if request.timestamp is None:
        times = np.full(len(file.columns), UNKNOWN_TIME, dtype=np.int64)
    else:
        times = timestamps(cells, request.timestamp)
    found = {
        "user": ids(cells, request.user),
        "item": ids(cells, request.item),
        **{LABEL + t.name: _labels(cells, column, t.kind) for t, column in request.tasks},
        "timestamp": times,
    }
    if request.weight is not None:
        found[WEIGHT] = weights(cells, request.weight)
    table = pa.table(found)
    return table if cells.good.all() else table.filter(cells.good), np.flatnonzero(cells.good)


def values_of(rows: pa.Table) -> dict[str, Any]:
    """Labels by task, times and weights of what rows() gave, by the names `Examples` has."""
    names = [name for name in rows.column_names if name.startswith(LABEL)]
    return {
        "labels": {name.removeprefix(LABEL): rows[name].to_numpy() for name in names},
        "timestamp": rows["timestamp"].to_numpy(),
        "weight": rows[WEIGHT].to_numpy() if WEIGHT in rows.column_names else None,
    }


def table_of(rows: Examples) -> pa.Table:
    """`rows` with their indices, as values_of() reads them."""
    columns: dict[str, NDArray[Any]] = {
        "user": rows.user,
        "item": rows.item,
        "timestamp": rows.timestamp,
    }
    for name, label in rows.labels.items():
        columns[LABEL + name] = label
    return pa.table(columns if rows.weight is None else {**columns, WEIGHT: rows.weight})


def ids(cells: Cells, column: str) -> pa.Array:
    """The ids as text. Raises DataError for a missing id or a type that cannot be an id."""
    raw = cells.flat(column)
    if pa.types.is_floating(raw.type):
        number = raw.to_numpy(zero_copy_only=False)
        wrong = (number != np.floor(number)) | (np.abs(number) >= 2.0**63)
        cells.refuse(wrong, raw, column, rule="a whole number or text")
        raw = pc.if_else(pa.array(wrong), None, raw).cast(pa.int64())
    if not (pa.types.is_integer(raw.type) or pa.types.is_string(raw.type)):
        label = cells.file.label
        raise DataError(f"{label}: {column} must hold text or whole numbers, not {raw.type}")
    text = raw.cast(pa.string())
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(text), ""), True)
    cells.refuse(_mask(blank), text, column, rule="there in every row")
    # A quote without its partner makes one long cell of several lines, and no other error.
    broken = pc.fill_null(pc.match_substring_regex(text, r"[\r\n]"), False)
    cells.refuse(_mask(broken), text, column, rule="on one line (is a quote missing?)")
    return text


def _labels(cells: Cells, column: str | None, kind: TaskKind) -> NDArray[np.float32]:
    """float32, NaN where the cell is empty; without a column every row is a positive.

    Raises DataError for a label that `kind` excludes.
    """
    if column is None:
        return np.ones(len(cells.good), dtype=np.float32)
    raw = cells.flat(column)
    number, wrong = _numbers(raw, cells.file, column)
    if kind == "binary":
        rule, outside = "0 or 1", ~np.isnan(number) & (number != 0) & (number != 1)
    else:
        rule, outside = "a finite number", np.abs(number) > np.finfo(np.float32).max
    wrong |= outside
    cells.refuse(wrong, raw, column, rule=f"{rule} (or empty where it is missing)")
    return np.where(wrong, np.nan, number).astype(np.float32)


def weights(cells: Cells, column: str) -> NDArray[np.float32]:
    """float32, 1 where the cell is empty. Raises DataError for what is no weight."""
    raw = cells.flat(column)
    number, wrong = _numbers(raw, cells.file, column)
    wrong |= ~np.isnan(number) & ~((number >= 0) & (number <= np.finfo(np.float32).max))
    cells.refuse(wrong, raw, column, rule="a finite number >= 0 (or empty, for 1)")
    return np.where(wrong | np.isnan(number), 1, number).astype(np.float32)


def timestamps(cells: Cells, column: str) -> Ints:
    """Seconds since 1970, UNKNOWN_TIME where the cell is empty; ISO dates count as UTC."""
    raw = cells.flat(column)
    if pa.types.is_temporal(raw.type):
        whole = raw.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("s"), safe=False)
        return np.asarray(pc.fill_null(whole.cast(pa.int64()), UNKNOWN_TIME).to_numpy())
    seconds, wrong = _numbers(raw, cells.file, column)
    if wrong.any():
        seconds[wrong] = _iso_dates(raw.filter(pa.array(wrong)))
        wrong &= np.isnan(seconds)
    wrong |= np.abs(seconds) >= 2.0**62
    cells.refuse(wrong, raw, column, rule="seconds since 1970 or an ISO date")
    unknown = wrong | np.isnan(seconds)
    return np.floor(np.where(unknown, UNKNOWN_TIME, seconds)).astype(np.int64)


def _numbers(raw: Any, file: TableFile, column: str) -> tuple[Floats, Mask]:
    """float64, NaN for an empty cell; and which cells hold something that is no number."""
    if not pa.types.is_string(raw.type):
        try:
            number = raw.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            kind = raw.type
            raise DataError(f"{file.label}: {column} must hold numbers, not {kind}") from None
        return number.copy(), np.zeros(len(raw), dtype=bool)
    text = pc.utf8_lower(pc.utf8_trim_whitespace(raw))
    digits = pc.if_else(pc.equal(text, "true"), "1", pc.if_else(pc.equal(text, "false"), "0", text))
    cells = pd.Series(digits.to_numpy(zero_copy_only=False), dtype=object)
    values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, copy=True)
    empty = _mask(pc.fill_null(pc.equal(text, ""), True))
    return values, np.isnan(values) & ~empty


def _iso_dates(text: Any) -> Floats:
    """Seconds since 1970; NaN for what is no ISO 8601 date."""
    cells = pd.Series(text.to_numpy(zero_copy_only=False), dtype=object).str.strip()
    dates = pd.to_datetime(cells, errors="coerce", utc=True, format="ISO8601")
    since = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    return np.asarray(since, dtype=np.float64)


def _mask(array: Any) -> Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=bool)
