"""Studies: runs one after another, a CSV row for each finished run, and tables of them."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from examples.common.figures import draw_curves
from examples.common.outputs import write, write_csv
from examples.common.runs import losses_by_epoch
from recsys_moe.errors import RunError

Row = Mapping[str, Any]
FOUND = ("best_epoch", "epochs_trained", "seconds_per_epoch", "threads", "device")


def run_study(
    asked: Sequence[tuple[Path, Any]],
    train: Callable[[Any, Path], Any],
    row: Callable[[Mapping[str, Any]], dict[str, Any]],
    out: Path,
) -> list[str]:
    """Train the runs that are not finished; error messages of those that failed.

    `asked`: folder and settings of each run. `row`: of OUT/results.csv, from the result of a run.
    """
    failures = []
    for number, (folder, settings) in enumerate(asked, 1):
        print(f"run {number} of {len(asked)}: {folder.name}", file=sys.stderr, flush=True)
        try:
            train(settings, folder)
        except RunError as error:
            failures.append(str(error))
        if rows := [row(run) for run in finished_runs(out)]:
            write_csv(out / "results.csv", rows)
    return failures


def report(rows: Sequence[Row], text: str, out: Path, *, as_json: bool) -> None:
    """Write the table `text` to OUT/table.md and print it, or the rows as JSON."""
    write(out / "table.md", text.encode())
    print(json.dumps(rows) if as_json else text, end="\n" if as_json else "")


def check_failures(failures: Sequence[str], count: int) -> None:
    """Raise RunError if one of `count` runs failed."""
    if failures:
        raise RunError(f"{len(failures)} of {count} runs failed: {'; '.join(failures)}")


def draw_runs(out: Path) -> None:
    """OUT/figure.*: validation losses by epoch, per contender and seed."""
    curves: dict[str, list[list[float]]] = {}
    for run in finished_runs(out):
        folder = out / "runs" / f"{run['label']}-seed{run['seed']}"
        curves.setdefault(run["label"], []).append(losses_by_epoch(folder))
    draw_curves(out, "figure", curves)


def finished_runs(out: Path) -> list[dict[str, Any]]:
    """The results below OUT/runs, each with the label of its contender, by label and seed."""
    runs = [
        {"label": path.parent.name.rpartition("-seed")[0], **json.loads(path.read_text())}
        for path in (out / "runs").glob("*/result.json")
    ]
    return sorted(runs, key=lambda run: (run["label"], run["seed"]))


def by_label(rows: Sequence[Row], order: Sequence[str] = ()) -> dict[str, list[Row]]:
    """The rows of each contender, in `order` and then by name."""
    rank = {label: place for place, label in enumerate(order)}
    labels = sorted({r["label"] for r in rows}, key=lambda name: (rank.get(name, len(rank)), name))
    return {label: [row for row in rows if row["label"] == label] for label in labels}


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table; the first line has the heads."""
    heads, *rest = lines
    rows = [heads, ["---"] * len(heads), *rest]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """A CSV that a study wrote, its numbers as numbers again and what is empty as None."""
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return [{name: _value(text) for name, text in row.items()} for row in rows]


def _value(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text or None


def fill_page(
    mark: str, table: Callable[[list[dict[str, Any]]], str], argv: Sequence[str] | None
) -> int:
    """Command `SOURCE PAGE`: write the table of the CSV SOURCE between the marks of PAGE.

    The marks are `<!-- mark -->` and `<!-- /mark -->`. Returns the exit code.
    """
    source, page = map(Path, sys.argv[1:] if argv is None else argv)
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    write(page, (before + begin + table(read_rows(source)) + end + after).encode())
    return 0
