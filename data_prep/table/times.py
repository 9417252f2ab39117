"""Times of rows, numbers in some unit or dates, as seconds since 1970 and nanoseconds."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from data_prep.ids import Ints
from data_prep.read.bad_rows import Mask
from data_prep.rows import UNKNOWN_TIME, Nanoseconds
from data_prep.table.cells import Cells
from data_prep.table.spec import Request
from recsys_moe.cells import UNITS, Unit, has_day_first, times
from recsys_moe.schema import DataError

log = logging.getLogger("recsys_moe.prepare")
_LATE = 4_102_444_800
"""The year 2100."""
_RELATIVE = 10**8
"""Seconds, to 1973: below are times since a beginning of the log's own."""


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
    raw, found = cells.read(column, partial(times, unit=unit, day_first=day_first))
    _refuse(found.wrong, raw, cells, column=column, day_first=day_first)
    missing = found.wrong | found.missing
    counts = np.bincount(found.unit[~found.wrong], minlength=len(UNITS) + 1)
    cells.notes.update(
        _odd(found.seconds[~missing]) + Counter(dict(zip(UNITS, counts.tolist(), strict=False)))
    )
    return Times(np.where(missing, UNKNOWN_TIME, found.seconds), found.nanoseconds)


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
        like[wrong] = [has_day_first(str(cell)) for cell in raw.filter(pa.array(wrong))]
        cells.refuse(like, raw, column, rule=f"{rule}; for dates like 31/1/2024 pass --day-first")
    cells.refuse(wrong, raw, column, rule=rule)
