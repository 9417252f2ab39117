"""The tables of research/weighting.md, and what is unfinished, from the rows."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from research.weighting.rows import METHODS, SEEDS, Job, Row, jobs

PAGE = Path(__file__).resolve().parents[1] / "weighting.md"
BEGIN, END = "<!-- table -->", "<!-- /table -->"
TITLES = {
    "conflict": "A log with two tasks that compete",
    "conflict-apart": "The same, the second task with a training weight of 100",
    "ml-100k": "MovieLens-100K (`movielens_100k`)",
    "ml-1m": "MovieLens-1M (`movielens_1m_quick`)",
}
Rows = Mapping[Job, Row]


def write_page(rows: Rows, page: Path = PAGE) -> None:
    """Replace what stands between the marks. Raises ValueError without them."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} must have {BEGIN} and {END}; add them")
    text = "\n".join([BEGIN, *tables(rows), END])
    page.write_text(before + text + after, encoding="utf-8")


def tables(rows: Rows) -> Iterator[str]:
    for log, seeds in SEEDS.items():
        yield f"\n### {TITLES[log]}\n"
        yield from _table(log, rows)
        missing = [job for job in jobs() if job.log == log and job not in rows]
        if missing:
            yield f"\n**Unfinished: {len(missing)} of {seeds * len(METHODS)} runs are missing.**"
    needed = f"Processor minutes that the missing runs need: {_left(rows)}."
    yield from ("", *textwrap.wrap(needed, 120), "")


def _table(log: str, rows: Rows) -> Iterator[str]:
    if not any(job.log == log for job in rows):
        yield "No run is finished."
        return
    yield (
        "| method | seeds | test loss | against fixed, same seeds | AUC | MSE | factors | epochs "
        "| minutes |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for method in METHODS:
        found = {
            job.seed: row for job, row in rows.items() if (job.log, job.method) == (log, method)
        }
        if found:
            yield _line(method, found, {s: rows.get(Job(log, "fixed", s)) for s in found})


def _line(method: str, found: Mapping[int, Row], fixed: Mapping[int, Row | None]) -> str:
    apart = [
        (row["loss"] or 0.0) - (other["loss"] or 0.0)
        for seed, row in found.items()
        if (other := fixed[seed]) is not None
    ]
    figures = [_mean(found, name, digits) for name, digits in (("loss", 4), ("auc", 4), ("mse", 4))]
    against = (
        "" if method == "fixed" or not apart else f"{statistics.fmean(apart):+.4f}{_error(apart)}"
    )
    factors = " / ".join(_mean(found, f"factor.{task}", 2) for task in (0, 1))
    cells = [method, str(len(found)), figures[0], against, *figures[1:]]
    cells += ["" if method == "fixed" else factors]
    return f"| {' | '.join([*cells, _mean(found, 'epochs', 1), _mean(found, 'minutes', 2)])} |"


def _mean(found: Mapping[int, Row], name: str, digits: int) -> str:
    values = [value for row in found.values() if (value := row[name]) is not None]
    return f"{statistics.fmean(values):.{digits}f}" if values else ""


def _error(values: list[float]) -> str:
    """Standard error of the mean, from two values on."""
    if len(values) < 2:
        return ""
    return f" +- {statistics.stdev(values) / len(values) ** 0.5:.4f}"


def _left(rows: Rows) -> str:
    """By log: runs missing times the minutes of a finished run of it."""
    parts = []
    for log in SEEDS:
        known = [row["minutes"] or 0.0 for job, row in rows.items() if job.log == log]
        missing = sum(job.log == log and job not in rows for job in jobs())
        if missing:
            minutes = f"{missing * statistics.fmean(known):.0f}" if known else "unknown"
            parts.append(f"{log} {minutes} ({missing} runs)")
    return ", ".join(parts) or "none"
