"""`evaluate --periods` as text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from recsys_moe.kinds import metric_title

TITLES = {"predicted_over_observed": "predicted / observed"}


def period_lines(result: dict[str, Any]) -> Iterator[str]:
    """A table per task: a line per period, a column per metric."""
    periods = result["periods"]
    for task in periods[0]["tasks"] if periods else ():
        found = [one["tasks"][task] for one in periods]
        names = [name for name in found[0] if name != "rows"]
        titles = [f"{TITLES.get(name, metric_title(name)):>6}" for name in names]
        yield f"{task} by period"
        yield f"  {'from (UTC)':16}  {'rows':>8}  {'  '.join(titles)}"
        for period, metrics in zip(periods, found, strict=True):
            cells = [
                f"{_number(metrics[name]):>{len(title)}}"
                for name, title in zip(names, titles, strict=True)
            ]
            yield f"  {_moment(period['first'])}  {metrics['rows']:8}  {'  '.join(cells)}"
    if without := result["rows_without_time"]:
        yield f"  in no period: {without} of {result['rows']} rows, which have no time"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _moment(seconds: int) -> str:
    """Date and minute, or the seconds themselves where they are beyond the calendar."""
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:16}"
