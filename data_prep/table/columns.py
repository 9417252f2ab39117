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
from data_prep.rows import UNKNOWN_TIME, Examples
from data_prep.table.files import TableFile
from data_prep.table.spec import Request
from recsys_moe.schema import DataError, TaskKind

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
WEIGHT = "weight"
LABEL = "label "
"""Begins the names of the columns with labels, so that a task may have any name."""


def rows(file: TableFile, request: Request) -> pa.Table:
    """`user` and `item` as text, "label NAME" for every task, `timestamp`; `weight` if there is."""
    if request.timestamp is None:
        times = np.full(len(file.columns), UNKNOWN_TIME, dtype=np.int64)
    else:
        times = timestamps(file, request.timestamp)
    found = {
        "user": ids(file, request.user),
        "item": ids(file, request.item),
        **{LABEL + t.name: _labels(file, column, t.kind) for t, column in request.tasks},
        "timestamp": times,
    }
    if request.weight is not None:
        found[WEIGHT] = weights(file, request.weight)
    return pa.table(found)


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


def ids(file: TableFile, column: str) -> pa.Array:
    """The ids as text. Raises DataError for a missing id or a type that cannot be an id."""
    raw = _flat(file, column)
    if pa.types.is_floating(raw.type):
        number = raw.to_numpy(zero_copy_only=False)
        _refuse(number != np.floor(number), raw, file, column, rule="a whole number or text")
        raw = raw.cast(pa.int64())
    if not (pa.types.is_integer(raw.type) or pa.types.is_string(raw.type)):
        raise DataError(f"{file.label}: {column} must hold text or whole numbers, not {raw.type}")
    text = raw.cast(pa.string())
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(text), ""), True)
    _refuse(_mask(blank), text, file, column, rule="there in every row")
    # A quote without its partner makes one long cell of several lines, and no other error.
    broken = pc.match_substring_regex(text, r"[\r\n]")
    _refuse(_mask(broken), text, file, column, rule="on one line (is a quote missing?)")
    return text


def _labels(file: TableFile, column: str | None, kind: TaskKind) -> NDArray[np.float32]:
    """float32, NaN where the cell is empty; without a column every row is a positive.

    Raises DataError for a label that `kind` excludes.
    """
    if column is None:
        return np.ones(len(file.columns), dtype=np.float32)
    raw = _flat(file, column)
    number, wrong = _numbers(raw, file, column)
    if kind == "binary":
        rule, outside = "0 or 1", ~np.isnan(number) & (number != 0) & (number != 1)
    else:
        rule, outside = "a finite number", np.abs(number) > np.finfo(np.float32).max
    _refuse(wrong | outside, raw, file, column, rule=f"{rule} (or empty where it is missing)")
    return number.astype(np.float32)


def weights(file: TableFile, column: str) -> NDArray[np.float32]:
    """float32, 1 where the cell is empty. Raises DataError for what is no weight."""
    raw = _flat(file, column)
    number, wrong = _numbers(raw, file, column)
    outside = ~np.isnan(number) & ~((number >= 0) & (number <= np.finfo(np.float32).max))
    _refuse(wrong | outside, raw, file, column, rule="a finite number >= 0 (or empty, for 1)")
    return np.nan_to_num(number, nan=1).astype(np.float32)


def timestamps(file: TableFile, column: str) -> Ints:
    """Seconds since 1970, UNKNOWN_TIME where the cell is empty; ISO dates count as UTC."""
    raw = _flat(file, column)
    if pa.types.is_temporal(raw.type):
        whole = raw.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("s"), safe=False)
        return np.asarray(pc.fill_null(whole.cast(pa.int64()), UNKNOWN_TIME).to_numpy())
    seconds, wrong = _numbers(raw, file, column)
    if wrong.any():
        seconds[wrong] = _iso_dates(raw.filter(pa.array(wrong)))
        wrong &= np.isnan(seconds)
    wrong |= np.abs(seconds) >= 2.0**62
    _refuse(wrong, raw, file, column, rule="seconds since 1970 or an ISO date")
    return np.floor(np.nan_to_num(seconds, nan=UNKNOWN_TIME)).astype(np.int64)


def _flat(file: TableFile, column: str) -> Any:
    """The column as one array, with dictionaries and long strings unfolded."""
    array = file.columns[column].combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.string()) if pa.types.is_large_string(array.type) else array


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


def _refuse(wrong: Mask, raw: Any, file: TableFile, column: str, *, rule: str) -> None:
    """Raises DataError for the first wrong cell."""
    if wrong.any():
        row = int(np.argmax(wrong))
        got = delimited.shown(raw[row].as_py())
        raise DataError(f"{file.place(row)}: {column} must be {rule}, got {got}")


def _mask(array: Any) -> Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=bool)
