"""Times of rows, numbers in some unit or dates, as seconds since 1970 and nanoseconds."""

from __future__ import annotations

import logging
import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.ids import Ints
from data_prep.read.bad_rows import Mask
from data_prep.rows import UNKNOWN_TIME, Nanoseconds
from data_prep.table.cells import Cells, Floats, numbers
from data_prep.table.spec import UNITS, Request, Unit
from recsys_moe.schema import DataError

log = logging.getLogger("recsys_moe.prepare")
_LARGEST = {"s": 1e11, "ms": 1e14, "us": 1e17}
"""Below which a number is taken to be in that unit: the years 5138, and 1973 of the unit before."""
_LATE = 4_102_444_800
"""The year 2100."""
_RELATIVE = 10**8
"""Seconds, to 1973: below are times since a beginning of the log's own."""
_DAY_FIRST = re.compile(r"(\d{1,2})[./-](\d{1,2})[./-](\d{4})(?:[ T]+(\d{1,2})(:\S*))?")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class Times(NamedTuple):
    """Whole seconds, rounded down, and what is left of each time."""

    seconds: Ints
    """UNKNOWN_TIME where the cell is empty."""
    nanoseconds: Nanoseconds


def timestamps(
    cells: Cells, column: str | None, unit: Unit = "auto", day_first: bool = False
) -> Times:
    """Of a column; None: all are unknown. Dates count as UTC.

    What report() needs is counted in `cells.notes`. Raises DataError for a cell that is not a time.
    """
    if column is None:
        rows = len(cells.good)
        return Times(np.full(rows, UNKNOWN_TIME, dtype=np.int64), np.zeros(rows, dtype=np.int32))
    raw = cells.flat(column)
    if pa.types.is_timestamp(raw.type) or pa.types.is_date(raw.type):
        found = _of_timestamps(raw)
        cells.notes.update(_odd(found.seconds[found.seconds != UNKNOWN_TIME]))
        return found
    (seconds, rest), units, wrong = _of_numbers(raw, cells, column, unit)
    if wrong.any():
        dates = _dates(raw.filter(pa.array(wrong)), day_first)
        seconds[wrong], rest[wrong] = _divided(np.nan_to_num(dates), 1)
        wrong[wrong] = np.isnan(dates)
    wrong |= np.abs(seconds.astype(np.float64)) >= 2.0**62
    _refuse(wrong, raw, cells, column=column, day_first=day_first)
    missing = wrong | np.asarray(pc.fill_null(pc.is_null(raw, nan_is_null=True), True))
    if pa.types.is_string(raw.type):
        missing |= np.asarray(pc.fill_null(pc.equal(pc.utf8_trim_whitespace(raw), ""), True))
    whole = np.where(wrong, 0, seconds).astype(np.int64)
    counts = np.bincount(units[~wrong], minlength=len(UNITS) + 1)
    cells.notes.update(
        _odd(whole[~missing]) + Counter(dict(zip(UNITS, counts.tolist(), strict=False)))
    )
    return Times(np.where(missing, UNKNOWN_TIME, whole), rest)


def report(notes: Counter[str], request: Request, rows: int) -> None:
    """Warn of implausible times.

    Raises DataError where the size of the numbers says that they are not all in one unit.
    """
    column = request.timestamp
    found = {unit: notes[unit] for unit in UNITS if notes[unit]}
    if len(found) > 1:
        counts = " and ".join(f"{count} in {unit}" for unit, count in found.items())
        raise DataError(
            f"{column} must be in one unit, but by magnitude {counts}; pass --timestamp-unit "
            f"{', '.join(UNITS)}, or convert them to one unit"
        )
    unit = next(iter(found), request.timestamp_unit)
    if unit in UNITS[1:] and request.timestamp_unit == "auto":
        log.info("%s: unit %s, inferred from the magnitude (--timestamp-unit)", column, unit)
    for name, where in (("late", "after 2100"), ("early", "before 1970")):
        if notes[name]:
            log.warning(
                "%s: %d of %d times are %s; is --timestamp-unit %s right?",
                *(column, notes[name], rows, where, unit),
            )
    if notes["zero"] and notes["dated"] and not notes["relative"]:
        log.warning(
            "%s: %d of %d times are 0, which is 1970-01-01; leave the cell empty where "
            "the time is unknown",
            *(column, notes["zero"], rows),
        )


def _of_timestamps(raw: Any) -> Times:
    exact = raw.cast(pa.timestamp("s"), safe=False) if pa.types.is_date(raw.type) else raw
    numbers = np.asarray(pc.fill_null(exact.cast(pa.int64()), 0).to_numpy())
    seconds, rest = _divided(numbers, _PER_SECOND[exact.type.unit])
    return Times(np.where(np.asarray(pc.is_null(raw)), UNKNOWN_TIME, seconds), rest)


def _of_numbers(
    raw: Any, cells: Cells, column: str, asked: Unit
) -> tuple[tuple[NDArray[Any], Nanoseconds], Ints, Mask]:
    """What _divided() gives of each number, the place of its unit in UNITS (behind it: of none),
    and which cells are no number."""
    if pa.types.is_integer(raw.type):  # exact, where nanoseconds are beyond what floats can hold
        wide = raw if pa.types.is_uint64(raw.type) else raw.cast(pa.int64())
        values = np.asarray(pc.fill_null(wide, 0))
        wrong = np.zeros(len(values), dtype=bool)
    else:
        values, wrong = numbers(raw, cells.file, column)
    known = np.isfinite(values)
    size = np.where(known, np.abs(values.astype(np.float64)), 0)
    units = _units(size, asked)
    scale = np.array(list(_PER_SECOND.values()))[units]
    found = _divided(np.where(known, values, 0), scale.astype(values.dtype))
    units[~known | (size == 0)] = len(UNITS)
    return found, units, wrong | np.isinf(values)


def _divided(values: NDArray[Any], scale: Any) -> tuple[NDArray[Any], Nanoseconds]:
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
    return np.searchsorted(list(_LARGEST.values()), size, side="right").astype(np.int64)


def _odd(seconds: Ints) -> Counter[str]:
    """How many times are far from those of a log, and how many are dates or relative."""
    size = np.abs(seconds)
    return Counter(
        late=int((seconds >= _LATE).sum()),
        early=int((seconds < 0).sum()),
        zero=int((seconds == 0).sum()),
        relative=int(((size > 0) & (size < _RELATIVE)).sum()),
        dated=int((size >= _RELATIVE).sum()),
    )


def _refuse(wrong: Mask, raw: Any, cells: Cells, *, column: str, day_first: bool) -> None:
    rule = "be seconds since 1970 or an ISO date"
    if day_first:
        rule = "be seconds since 1970, an ISO date or a date like 31/1/2024"
    elif wrong.any() and pa.types.is_string(raw.type):
        like = wrong.copy()
        found = (_DAY_FIRST.fullmatch(str(cell).strip()) for cell in raw.filter(pa.array(wrong)))
        like[wrong] = [match is not None for match in found]
        cells.refuse(like, raw, column, rule=f"{rule}; for dates like 31/1/2024 pass --day-first")
    cells.refuse(wrong, raw, column, rule=rule)


def _dates(text: Any, day_first: bool) -> Floats:
    """Seconds since 1970; NaN for a cell in none of the accepted date formats."""
    cells = pd.Series(text.to_numpy(zero_copy_only=False), dtype=object).str.strip()
    if day_first:
        cells = cells.map(_as_iso)
    dates = pd.to_datetime(cells, errors="coerce", utc=True, format="ISO8601")
    since = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    return np.asarray(since, dtype=np.float64)


def _as_iso(cell: str) -> str:
    """31/1/2024 9:30 as 2024-01-31T09:30; anything else as it is."""
    match = _DAY_FIRST.fullmatch(cell)
    if match is None:
        return cell
    day, month, year, hour, rest = match.groups()
    time = "" if hour is None else f"T{hour:0>2}{rest}"
    return f"{year}-{month:0>2}-{day:0>2}{time}"
