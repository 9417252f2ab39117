"""Joint choice: loss against experts visited per example, shared by tasks or each its own.

    python -m research.joint --data data/ml-100k --out runs/joint [--forms apart-2,joint-3]
                             [--seeds 5] [--config movielens_100k] [--set a.b=value ...]
                             [--rows FILE] [--table]

Trains each form and seed to its end, tests it and adds a line to FILE
(research/results/joint.csv), seed by seed, so that every seed has all forms before the next one
starts. What has a line is not run again; an interrupted run goes on. --table prints what is there.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common
from recsys_moe.files import read_object
from research.routers.run import command, commit

ROWS = Path(__file__).parent / "results" / "joint.csv"
K, JOINT = "model.router.k", "model.router.joint"
FORMS: dict[str, dict[str, float]] = {
    **{f"apart-{k}": {K: k} for k in (2, 3, 4)},
    **{f"joint-{shared}": {K: 2, JOINT: shared} for shared in (2, 3, 4)},
    **{f"joint-{k + 1}-of-{k}": {K: k, JOINT: k + 1} for k in (3, 4)},
    **{f"agree-{k}": {K: k, "penalties.disagreement": 0.1} for k in (2, 3, 4)},
    **{f"agree-2-{weight}": {K: 2, "penalties.disagreement": weight} for weight in (0.02, 1.0)},
}
"""Settings beside those of the configuration; `agree`: apart, with a penalty."""
FIGURES = ("loss", "watch.auc", "rating.mse", "visited")
COLUMNS = ("form", "seed", *(f"val.{name}" for name in FIGURES), *FIGURES, "best_epoch", "commit")
Line = dict[str, str]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=1, clock=False)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--forms", default="apart-2,joint-2,joint-3,joint-4")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--config", default="movielens_100k")
    parser.add_argument("--set", nargs="*", default=[], help="settings of every form")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--table", action="store_true")
    options = common.parse(parser, argv)
    if unknown := {*options.forms.split(",")} - FORMS.keys():
        parser.error(f"--forms must be of {', '.join(FORMS)}, got {', '.join(sorted(unknown))}")
    if not options.table:
        for form, seed in missing(options.rows, options.forms.split(","), options.seeds):
            add(finish(form, seed, options), options.rows)
    sys.stdout.write("\n".join(table(read(options.rows))) + "\n")


def missing(path: Path, forms: Sequence[str], seeds: int) -> Iterator[tuple[str, int]]:
    """Asked anew after each, as another process may have made a line."""
    for seed in range(seeds):
        for form in forms:
            if not any((line["form"], line["seed"]) == (form, str(seed)) for line in read(path)):
                yield form, seed


def finish(form: str, seed: int, options: Any) -> Line:
    run, data = options.out / f"{form}-seed{seed}", options.data
    settings = [*options.set, *(f"{key}={value}" for key, value in FORMS[form].items())]
    words = ["--data", data, "--config", options.config, "--seed", seed, "--out", run]
    for word in settings:
        words += ["--set", word]
    if not (run / "model").exists():
        command("fit", *words, "--resume", "auto")
    val, test = (
        command("evaluate", run, "--data", data, "--split", split, "--json")[1]
        for split in ("val", "test")
    )
    figures = {f"val.{name}": value for name, value in figures_of(val).items()} | figures_of(test)
    written = {name: f"{value:.6f}" for name, value in figures.items()}
    epoch = read_object(run / "model" / "card.json")["val"]["epoch"]
    own = {"form": form, "seed": str(seed), "best_epoch": str(epoch), "commit": commit()}
    return own | written


def figures_of(found: dict[str, Any]) -> dict[str, float]:
    """Those of FIGURES."""
    tasks = found["tasks"]
    watch, rating = tasks["watch"]["auc"], tasks["rating"]["mse"]
    values = (found["loss"], watch, rating, found["experts_per_example"])
    return dict(zip(FIGURES, values, strict=True))


def read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def add(line: Line, path: Path) -> None:
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(line)


def table(lines: Sequence[Line]) -> list[str]:
    """Means over seeds with standard errors, fewest experts visited first."""
    names = ("visited", "val.loss", "loss", "watch.auc", "rating.mse", "best_epoch")
    rows = ["| form | seeds | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    forms = {line["form"] for line in lines}
    by_form = {form: [line for line in lines if line["form"] == form] for form in forms}
    for form, own in sorted(
        by_form.items(), key=lambda item: (statistics.fmean(visits(item[1])), item[0])
    ):
        cells = [shown(name, [float(line[name]) for line in own]) for name in names]
        rows.append(f"| `{form}` | {len(own)} | " + " | ".join(cells) + " |")
    return rows


def visits(lines: Sequence[Line]) -> list[float]:
    return [float(line["visited"]) for line in lines]


def shown(name: str, values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    if name in ("visited", "best_epoch"):
        return f"{mean:.2f}"
    if len(values) == 1:
        return f"{mean:.4f}"
    return f"{mean:.4f} +- {statistics.stdev(values) / len(values) ** 0.5:.4f}"


if __name__ == "__main__":
    main()
