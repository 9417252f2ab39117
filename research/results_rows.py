"""Runs and epochs of comparisons from CSV files: read, merged, and averaged per router."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from recsys_moe.config.overview import overviews
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.lab.compare.results import NOT_SPARSE, Column, TTest, compare_best
from recsys_moe.lab.compare.significance import Spread, spread
from research.paper_figures import figures_of, paper_data

Line = dict[str, str]
NAME = re.compile(r"(?P<label>.+)-(?P<weights>[\d.e+-]+(?:_[\d.e+-]+)*)-seed(?P<seed>\d+)")
TASK = re.compile(r"(?!val\.|paper\.)(.+)\.(auc|mse)")
ALIKE = ("data", "protocol", "split", "paper", "losses")
"""Columns that are the same in all lines of a table, where they are there."""


@dataclass(frozen=True)
class Router:
    """The finished runs of one label at one pair of task weights."""

    label: str
    name: str
    """Of the router itself, as `recsys-moe routers` has it."""
    visits: str
    runs: list[Line]
    epochs: dict[str, list[Line]]
    """By run, in their order, of the runs whose epochs are known."""

    @property
    def is_sparse(self) -> bool:
        return not self.visits.endswith(NOT_SPARSE)

    def values(self, column: str) -> dict[int, float]:
        """By seed, where they are known."""
        return {int(run["seed"]): float(run[column]) for run in self.runs if run.get(column)}

    def spread(self, column: str) -> Spread | None:
        values = list(self.values(column).values())
        return spread(values) if values else None

    @property
    def seconds(self) -> float | None:
        """Of an epoch: the median over the runs of the median of each."""
        seconds = self.values("seconds_per_epoch")
        return statistics.median(seconds.values()) if seconds else None

    def losses(self) -> list[list[float]]:
        """Validation loss by epoch, of every run whose epochs are known."""
        return [[float(line["val.loss"]) for line in lines] for lines in self.epochs.values()]

    def reached(self, loss: float) -> list[int | None]:
        """The first epoch of each of these runs with at most this validation loss."""
        return [
            next((n for n, value in enumerate(losses, 1) if value <= loss), None)
            for losses in self.losses()
        ]


@dataclass(frozen=True)
class Group:
    """Routers of the same task weights, the lowest mean loss first."""

    weights: dict[str, float]
    routers: list[Router]
    columns: list[Column]
    """Loss, then AUC or MSE per task."""
    paper: dict[str, dict[str, Spread]]
    """The paper's figures by router, where the data are its own."""

    @property
    def title(self) -> str:
        return ", ".join(f"{task} {weight:g}" for task, weight in self.weights.items())

    @property
    def references(self) -> list[Router]:
        """The best router and, where that is another, the best k-sparse one."""
        best, sparse = self.routers[0], [r for r in self.routers if r.is_sparse]
        return [best] if best.is_sparse else [best, *sparse[:1]]

    def tests(self, column: Column) -> list[TTest]:
        """Of the best k-sparse router against each of the others."""
        sparse = [router for router in self.routers if router.is_sparse]
        return compare_best(column, {r.label: r.values(column.name) for r in sparse})


def read_groups(runs: Sequence[Path], epochs: Sequence[Path]) -> list[Group]:
    """Raises ConfigError where files contradict each other or lack a column."""
    lines = merged(runs, ["run"])
    for fact in ALIKE:
        if len(found := {line[fact] for line in lines if line.get(fact)}) > 1:
            different = f"{fact} ({', '.join(sorted(found))})"
            raise ConfigError(f"runs of different {different} cannot stand in one table")
    by_run: dict[str, list[Line]] = {}
    for line in merged(epochs, ["run", "epoch"]):
        by_run.setdefault(line["run"], []).append(line)
    for of_run in by_run.values():
        of_run.sort(key=lambda line: int(line["epoch"]))
    columns = _columns(lines)
    by_weights: dict[tuple[float, ...], list[Line]] = {}
    for line in lines:
        by_weights.setdefault(tuple(_weights(line).values()), []).append(line)
    return [_group(by_weights[key], by_run, columns) for key in sorted(by_weights, reverse=True)]


def merged(paths: Sequence[Path], key: Sequence[str]) -> list[Line]:
    """Lines of all files; one that stands in several must say the same in each."""
    found: dict[str, tuple[Line, Path]] = {}
    for path in paths:
        for line in (_completed(line, path) for line in _read(path, key)):
            name = ", epoch ".join(line[part] for part in key)
            before, other = found.get(name, (line, path))
            for column in before.keys() & line.keys():
                if not _same(before[column], line[column]):
                    raise ConfigError(
                        f"{name} differs: {column} is {before[column]} in {other} and "
                        f"{line[column]} in {path}; keep the one whose run folder is right"
                    )
            found[name] = (before | line, path)
    return [line for line, _ in found.values()]


def _read(path: Path, key: Sequence[str]) -> list[Line]:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = list(csv.DictReader(stream))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 2):
        if not all(line.get(part) for part in key) or None in line or None in line.values():
            raise ConfigError(f"{path}, line {number}: it must have {', '.join(key)} and all cells")
    return lines


def _same(one: str, other: str) -> bool:
    """16 and 16.0 are."""
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def _completed(line: Line, path: Path) -> Line:
    """Files of before `runs.csv` say label, weights and seed in the name of the run alone."""
    if "label" in line:
        return line
    tasks = [found[1] for column in line if (found := TASK.fullmatch(column))]
    name = NAME.fullmatch(line["run"])
    weights = name["weights"].split("_") if name else []
    known = overviews(parse_config({}))
    if name is None or len(weights) != len(tasks) or name["label"] not in known:
        raise ConfigError(f"{path}: {line['run']!r} must be ROUTER-W_W-seedN, or have a label")
    label = name["label"]
    own = {f"weight.{task}": weight for task, weight in zip(tasks, weights, strict=True)}
    visits = known[label].training or ""
    return {"label": label, "router": label, "visits": visits, **own, "seed": name["seed"], **line}


def _weights(line: Line) -> dict[str, float]:
    start = "weight."
    return {k.removeprefix(start): float(v) for k, v in line.items() if k.startswith(start)}


def _columns(lines: Iterable[Line]) -> list[Column]:
    names = dict.fromkeys(name for line in lines for name in line)
    tasks = [found for name in names if (found := TASK.fullmatch(name))]
    ways = {"auc": "higher", "mse": "lower"}
    return [Column("loss", "loss", "lower", 4)] + [
        Column(task[0], f"{task[1]} {task[2].upper()}", ways[task[2]], 4) for task in tasks
    ]


def _group(lines: list[Line], epochs: dict[str, list[Line]], columns: list[Column]) -> Group:
    by_label: dict[str, list[Line]] = {}
    for line in lines:
        by_label.setdefault(line["label"], []).append(line)
    routers = [
        Router(
            label,
            runs[0]["router"],
            runs[0]["visits"],
            sorted(runs, key=lambda run: int(run["seed"])),
            {run["run"]: epochs[run["run"]] for run in runs if run["run"] in epochs},
        )
        for label, runs in by_label.items()
    ]
    routers.sort(key=lambda router: statistics.fmean(router.values("loss").values()))
    weights = _weights(lines[0])
    return Group(weights, routers, columns, figures_of(paper_data(lines[0]), weights))
