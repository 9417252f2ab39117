"""The numbers of a comparison: read from run folders, averaged over seeds, tested."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.overview import overviews
from recsys_moe.config.settings import parse_config
from recsys_moe.lab.compare.paper_figures import paper_figures
from recsys_moe.lab.compare.plan import ComparisonPlan, Contender
from recsys_moe.lab.compare.significance import LEVEL, Spread, holm, paired_p, spread, unpaired_p
from recsys_moe.lab.jobs.lab_run import LabRun
from recsys_moe.routers import find_router
from recsys_moe.schema import Schema

EPOCH_TIME = re.compile(r"^epoch (\d+)/\S+ done in ([\d.]+) s", re.MULTILINE)
NOT_SPARSE = ("dense", "dense to sparse")


@dataclass(frozen=True)
class Column:
    name: str
    title: str
    better: str | None
    """`higher`, `lower`, or None for a cost, which is not tested."""
    digits: int


@dataclass(frozen=True)
class RunRecord:
    """One finished run and where its numbers come from."""

    contender: str
    seed: int
    run: str
    """Its folder, below that of the comparison; so is `log`."""
    log: str
    best_epoch: int
    epochs: int
    values: dict[str, float | None]
    """By name of the column."""
    details: dict[str, Any]
    """The evaluation of the split, as `evaluate --json` prints it."""


@dataclass(frozen=True)
class TTest:
    """Is the best k-sparse router of a column better than another one?"""

    column: str
    best: str
    other: str
    runner_up: bool
    """True for the other router with the best mean: the test that decides what is bold."""
    unpaired: float | None
    unpaired_holm: float | None
    paired: float | None
    paired_holm: float | None


@dataclass(frozen=True)
class Row:
    contender: str
    router: str
    experts: str
    """Experts an example visits in training, in words of `recsys-moe routers`."""
    k_sparse: bool
    runs: int
    cells: dict[str, Spread]
    bold: tuple[str, ...]
    """Columns in which this is the best k-sparse router, significantly so."""
    paper: dict[str, Spread]


@dataclass(frozen=True)
class Group:
    """Rows that can be compared: the same task weights."""

    weights: dict[str, float]
    rows: list[Row]
    tests: list[TTest]


@dataclass(frozen=True)
class Results:
    data: str
    protocol: str
    split: str
    seeds: tuple[int, ...]
    columns: list[Column]
    groups: list[Group]
    runs: list[RunRecord]
    missing: list[str]
    """Planned runs without a result."""


def columns_of(schema: Schema) -> list[Column]:
    """Loss, AUC or MSE per task, then costs."""
    columns = [Column("loss", "loss", "lower", 4)]
    for task in schema.tasks:
        metric, better = ("auc", "higher") if task.kind == "binary" else ("mse", "lower")
        columns.append(Column(f"{task.name}.{metric}", f"{task.name} {metric.upper()}", better, 4))
    return [
        *columns,
        Column("experts_training", "experts, training", None, 2),
        Column("experts_inference", "experts, inference", None, 2),
        Column("seconds_per_epoch", "s/epoch", None, 1),
        Column("parameters", "parameters", None, 0),
    ]


def lab_run(out: Path, key: str, seed: int) -> LabRun:
    """The run of a contender and a seed."""
    return LabRun(out, "runs", f"{key}-seed{seed}")


def collect(plan: ComparisonPlan, schema: Schema, out: Path) -> Results:
    """Everything that is finished at `out`."""
    columns = columns_of(schema)
    by_run = {
        (key, seed): read_run(plan, out, key, seed, columns=columns) for key, seed in plan.runs()
    }
    records = [record for record in by_run.values() if record is not None]
    return Results(
        schema.name,
        schema.protocol,
        plan.split,
        plan.seeds,
        columns,
        [
            _group(plan, schema, keys, records=records, columns=columns)
            for keys in plan.groups().values()
        ],
        records,
        [f"{key}-seed{seed}" for (key, seed), record in by_run.items() if record is None],
    )


def read_run(
    plan: ComparisonPlan, out: Path, key: str, seed: int, *, columns: Iterable[Column]
) -> RunRecord | None:
    """The numbers of a run, None while it is not finished and evaluated."""
    run = lab_run(out, key, seed)
    result = run.evaluation(plan.split)
    if result is None:
        return None
    shares = _evaluated_shares(run.folder / "metrics.csv")
    model = plan.contenders[key].config["model"]
    passes = find_router(model["router"]["name"]).passes
    values: dict[str, float | None] = {
        "loss": result["loss"],
        "experts_training": statistics.fmean(shares) * model["num_experts"] * passes,
        "experts_inference": result.get("experts_per_example"),
        "seconds_per_epoch": _seconds_per_epoch(run.read_log()),
        "parameters": _parameters(lab_run(out, key, plan.seeds[0]), run),
    }
    for column in columns:
        task, _, metric = column.name.rpartition(".")
        if task:
            values[column.name] = result["tasks"][task][metric]
    card = json.loads((run.folder / "model" / "card.json").read_text(encoding="utf-8"))
    folder, log = run.places
    return RunRecord(key, seed, folder, log, card["val"]["epoch"], len(shares), values, result)


def _evaluated_shares(metrics: Path) -> list[float]:
    """Per epoch the share of all (example, expert) pairs that training evaluated.

    A run that was killed may have an epoch twice; the last row counts.
    """
    with metrics.open(encoding="utf-8", newline="") as stream:
        rows = {row["epoch"]: row for row in csv.DictReader(stream)}
    return [float(row["train/evaluated_share"]) for row in rows.values()]


def _seconds_per_epoch(log: str) -> float | None:
    """Median, because the epochs of a busy machine have a tail. Includes the validation."""
    seconds = {epoch: float(time) for epoch, time in EPOCH_TIME.findall(log)}
    return statistics.median(seconds.values()) if seconds else None


def _parameters(first: LabRun, run: LabRun) -> float:
    """Learned numbers of the whole model; the same for all seeds, so the first run is counted."""
    return _count_parameters((first if first.is_trained else run).folder)


@lru_cache
def _count_parameters(run: Path) -> float:
    return float(sum(p.numel() for p in load_artifact(run).model.parameters()))


def _group(
    plan: ComparisonPlan,
    schema: Schema,
    keys: Sequence[str],
    *,
    records: Sequence[RunRecord],
    columns: Sequence[Column],
) -> Group:
    by_seed = {key: {r.seed: r.values for r in records if r.contender == key} for key in keys}
    sparse = [key for key in keys if _is_k_sparse(plan.contenders[key])]
    tests = [
        test
        for column in columns
        if column.better
        for test in compare_best(column, {key: _values(by_seed[key], column) for key in sparse})
    ]
    names = [task.name for task in schema.tasks]
    weights = dict(zip(names, plan.contenders[keys[0]].weights, strict=True))
    paper = paper_figures(schema, weights, plan.split)
    rows = [
        Row(
            key,
            plan.contenders[key].router,
            _experts(plan.contenders[key]),
            key in sparse,
            len(by_seed[key]),
            _cells(by_seed[key], columns),
            tuple(test.column for test in tests if is_bold(test) and test.best == key),
            paper.get(plan.contenders[key].router, {}),
        )
        for key in keys
    ]
    return Group(weights, rows, tests)


def _experts(contender: Contender) -> str:
    return _experts_in_training(json.dumps(contender.config["model"]))


@lru_cache
def _experts_in_training(model: str) -> str:
    config = parse_config({"model": json.loads(model)})
    return overviews(config)[config.model.router.name].training or ""


def _is_k_sparse(contender: Contender) -> bool:
    return _experts(contender) not in NOT_SPARSE


def _values(by_seed: dict[int, dict[str, float | None]], column: Column) -> dict[int, float]:
    """Value per seed where it is defined."""
    values = {seed: values[column.name] for seed, values in by_seed.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def _cells(
    by_seed: dict[int, dict[str, float | None]], columns: Iterable[Column]
) -> dict[str, Spread]:
    values = {column.name: list(_values(by_seed, column).values()) for column in columns}
    return {name: spread(defined) for name, defined in values.items() if defined}


def compare_best(column: Column, values: dict[str, dict[int, float]]) -> list[TTest]:
    """Tests of the best mean against every other one, by p-value of their family.

    `values`: per contender the value of each seed. Empty unless two contenders have values.
    """
    higher = column.better == "higher"
    means = {key: spread(list(runs.values())).mean for key, runs in values.items() if runs}
    best, *others = sorted(means, key=means.__getitem__, reverse=higher) or [""]
    tested = [(key, _p_values(values[best], values[key], higher)) for key in others]
    unpaired = holm([p for _, (p, _) in tested])
    paired = holm([p for _, (_, p) in tested])
    return [
        TTest(column.name, best, key, place == 0, p[0], unpaired[place], p[1], paired[place])
        for place, (key, p) in enumerate(tested)
    ]


def _p_values(
    best: dict[int, float], other: dict[int, float], higher: bool
) -> tuple[float | None, float | None]:
    seeds = sorted(best.keys() & other.keys())
    pairs = [best[seed] for seed in seeds], [other[seed] for seed in seeds]
    unpaired = unpaired_p(list(best.values()), list(other.values()), higher)
    return unpaired, paired_p(*pairs, higher)


def is_bold(test: TTest) -> bool:
    """The paper's rule: better than the best other k-sparse router, one-sided unpaired t-test."""
    return test.runner_up and test.unpaired is not None and test.unpaired < LEVEL
