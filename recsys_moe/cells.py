"""Cells of a column as numbers and as times, by the rules of docs/how-to/prepare-data.md.

pandas is imported where text is read, not before. Axes: N cells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys_moe import raw_ids

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
SWITCHES = {"true": "1", "false": "0"}
"""Words that are numbers, in any case."""
Unit = Literal["auto", "s", "ms", "us", "ns"]
UNITS = get_args(Unit)[1:]
"""Of times in numbers, each a thousandth of the one before."""
LARGEST = {"s": 1e11, "ms": 1e14, "us": 1e17}
"""Below which a number is taken to be in that unit: the years 5138, and 1973 of the unit before."""
PRESENT = ("now", "today")
"""Words that pandas takes for a date, another one at each call."""
_DAY_FIRST = re.compile(r"(\d{1,2})[./-](\d{1,2})[./-](\d{4})(?:[ T]+(\d{1,2})(:\S*))?")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class Times(NamedTuple):
    """The times of N cells; 0 where there is none."""

    seconds: Ints
    """Since 1970 UTC, rounded down."""
    nanoseconds: NDArray[np.int32]
    """What is left."""
    missing: Mask
    """Where the cell is empty."""
    wrong: Mask
    """Where it is neither empty nor a time."""
    unit: Ints
    """The place in UNITS of the unit of a number; len(UNITS) of 0, and of what is none."""


def flat(column: Any) -> Any:
    """The column as one array, with dictionaries and long strings unfolded."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.string()) if raw_ids.is_text(array.type) else array


def numbers(raw: Any, words: Mapping[str, str] = SWITCHES) -> tuple[Floats, Mask]:
    """Of a `flat` array: float64, NaN for an empty cell; and which cells hold neither a number nor
    one of `words`. Raises pa.ArrowException for a type without numbers."""
    if not pa.types.is_string(raw.type):
        number = raw.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return number.copy(), np.zeros(len(raw), dtype=bool)
    import pandas as pd

    text = pc.utf8_lower(pc.utf8_trim_whitespace(raw))
    digits = text
    for word, digit in words.items():
        digits = pc.if_else(pc.equal(text, word), digit, digits)
    cells = pd.Series(digits.to_numpy(zero_copy_only=False), dtype=object)
    values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, copy=True)
    return values, np.isnan(values) & ~_is_empty(text)


def times(raw: Any, unit: Unit = "auto", day_first: bool = False) -> Times:
    """Of a `flat` array of numbers in `unit` (auto: by their size), ISO dates or timestamps.

    `day_first`: dates like 31/1/2024, too. Dates without a zone are UTC. Raises pa.ArrowException
    for a type without times.
    """
    if pa.types.is_timestamp(raw.type) or pa.types.is_date(raw.type):
        return _of_timestamps(raw)
    (seconds, rest), units, wrong = _of_numbers(raw, unit)
    if wrong.any() and pa.types.is_string(raw.type):
        dates = _dates(raw.filter(pa.array(wrong)), day_first)
        seconds[wrong], rest[wrong] = _divided(np.nan_to_num(dates), 1)
        wrong[wrong] = np.isnan(dates)
    wrong |= np.abs(seconds.astype(np.float64)) >= 2.0**62
    missing = np.asarray(pc.fill_null(pc.is_null(raw, nan_is_null=True), True))
    if pa.types.is_string(raw.type):
        missing = missing | _is_empty(pc.utf8_trim_whitespace(raw))
    return Times(np.where(wrong, 0, seconds).astype(np.int64), rest, missing, wrong, units)


def has_day_first(cell: str) -> bool:
    """Is it a date like 31/1/2024?"""
    return _DAY_FIRST.fullmatch(cell.strip()) is not None


def _is_empty(text: Any) -> Mask:
    return np.asarray(pc.fill_null(pc.equal(text, ""), True).to_numpy(zero_copy_only=False), bool)


def _of_timestamps(raw: Any) -> Times:
    exact = raw.cast(pa.timestamp("s"), safe=False) if pa.types.is_date(raw.type) else raw
    numbers = np.asarray(pc.fill_null(exact.cast(pa.int64()), 0).to_numpy())
    none, nowhere = np.zeros(len(raw), dtype=bool), np.full(len(raw), len(UNITS))
    missing = np.asarray(pc.is_null(raw))
    return Times(*_divided(numbers, _PER_SECOND[exact.type.unit]), missing, none, nowhere)


def _of_numbers(raw: Any, asked: Unit) -> tuple[tuple[NDArray[Any], NDArray[Any]], Ints, Mask]:
    """What _divided() gives of each number, its unit as in `Times`, and which cells are none."""
    if pa.types.is_integer(raw.type):  # exact, where nanoseconds are beyond what floats can hold
        wide = raw if pa.types.is_uint64(raw.type) else raw.cast(pa.int64())
        values = np.asarray(pc.fill_null(wide, 0))
        wrong = np.zeros(len(values), dtype=bool)
    else:
        values, wrong = numbers(raw, {})
    known = np.isfinite(values)
    size = np.where(known, np.abs(values.astype(np.float64)), 0)
    units = _units(size, asked)
    scale = np.array(list(_PER_SECOND.values()))[units]
    found = _divided(np.where(known, values, 0), scale.astype(values.dtype))
    units[~known | (size == 0)] = len(UNITS)
    return found, units, wrong | np.isinf(values)


def _divided(values: NDArray[Any], scale: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Whole seconds and the nanoseconds left of times in 1 / `scale` seconds.

    Of floats rounded to microseconds: since 1970 they hold no more, and 0.05 s is as 50 ms.
    """
    seconds, rest = np.divmod(values, scale)
    if values.dtype.kind == "f":
        rest = np.rint(rest / scale * 1e6) * 1e3
    else:
        rest = rest * (10**9 // scale)
    return seconds, rest.astype(np.int32)


def _units(size: Floats, unit: Unit) -> Ints:
    """The number of each cell's unit: the one that is asked for, or by the size of the number."""
    if unit != "auto":
        return np.full(len(size), UNITS.index(unit), dtype=np.int64)
    return np.searchsorted(list(LARGEST.values()), size, side="right").astype(np.int64)


def _dates(text: Any, day_first: bool) -> Floats:
    """Seconds since 1970; NaN for a cell in none of the accepted date formats."""
    import pandas as pd

    cells = pd.Series(text.to_numpy(zero_copy_only=False), dtype=object).str.strip()
    if day_first:
        cells = cells.map(_as_iso)
    cells = cells.where(~cells.str.lower().isin(PRESENT))
    dates = pd.to_datetime(cells, errors="coerce", utc=True, format="ISO8601")
    start = pd.Timestamp(0, tz="UTC").as_unit("s")  # one in ns could not meet the year 1
    since = (dates - start) / pd.Timedelta(seconds=1)
    return np.asarray(since, dtype=np.float64)


def _as_iso(cell: str) -> str:
    """31/1/2024 9:30 as 2024-01-31T09:30; anything else as it is."""
    match = _DAY_FIRST.fullmatch(cell)
    if match is None:
        return cell
    day, month, year, hour, rest = match.groups()
    time = "" if hour is None else f"T{hour:0>2}{rest}"
    return f"{year}-{month:0>2}-{day:0>2}{time}"
