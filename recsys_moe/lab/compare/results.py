"""The numbers of a comparison: read from run folders, averaged over seeds, tested."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.artifact.monitor import LOSS
from recsys_moe.config.overview import overviews
from recsys_moe.config.settings import parse_config
from recsys_moe.files import read_record
from recsys_moe.lab.compare.columns import RANKING, Column, columns_of
from recsys_moe.lab.compare.epochs import read_epochs
from recsys_moe.lab.compare.plan import ComparisonPlan
from recsys_moe.lab.compare.significance import LEVEL, Spread, holm, paired_p, spread, unpaired_p
from recsys_moe.lab.jobs.lab_run import LabRun
from recsys_moe.routers import find_router
from recsys_moe.routers.base import FIXED
from recsys_moe.schema import Schema

NOT_SPARSE = ("dense", "dense to sparse", FIXED)
"""How `Row.experts` ends for routers that are not k-sparse from the start."""


@dataclass(frozen=True)
class RunRecord:
    """One finished run."""

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
    monitor: str = LOSS
    """The validation metric that chose the epoch."""


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
    """Experts per example in training, as in `recsys-moe routers`."""
    k_sparse: bool
    runs: int
    cells: dict[str, Spread]
    bold: tuple[str, ...]
    """Columns in which this is significantly the best k-sparse router."""


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


def lab_run(out: Path, key: str, seed: int) -> LabRun:
    """The run of a contender and a seed."""
    return LabRun(out, "runs", f"{key}-seed{seed}")


def collect(plan: ComparisonPlan, schema: Schema, out: Path, ranking: bool = False) -> Results:
    """All finished runs at `out`; `ranking`: with ranking metrics."""
    columns = columns_of(schema, ranking)
    by_run = {
        (key, seed): _read_run(plan, out, columns, key=key, seed=seed) for key, seed in plan.runs()
    }
    records = [record for record in by_run.values() if record is not None]
    return Results(
        data=schema.name,
        protocol=schema.protocol,
        split=plan.split,
        seeds=plan.seeds,
        columns=columns,
        groups=[
            _group(plan, schema, keys, records=records, columns=columns)
            for keys in plan.groups().values()
        ],
        runs=records,
        missing=[f"{key}-seed{seed}" for (key, seed), record in by_run.items() if record is None],
    )


def _read_run(
    plan: ComparisonPlan, out: Path, columns: Iterable[Column], *, key: str, seed: int
) -> RunRecord | None:
    """The numbers of a run, None while it is not finished and evaluated."""
    run, first = lab_run(out, key, seed), lab_run(out, key, plan.seeds[0])
    result = run.evaluation(plan.split)
    if result is None:
        return None
    epochs = read_epochs(run)
    model = plan.contenders[key].config["model"]
    shares = [epoch.metrics["train/evaluated_share"] or 0.0 for epoch in epochs]
    passes = find_router(model["router"]["name"]).passes
    times = [epoch.seconds for epoch in epochs if epoch.seconds is not None]
    values: dict[str, float | None] = {
        "loss": result["loss"],
        "experts_training": statistics.fmean(shares) * model["num_experts"] * passes,
        "experts_inference": result.get("experts_per_example"),
        # The median, because the epochs of a busy machine have a tail.
        "seconds_per_epoch": statistics.median(times) if times else None,
        # The same for all seeds, so the first run is counted.
        "parameters": _count_parameters((first if first.is_trained else run).folder),
    }
    for task, metrics in result["tasks"].items():
        values |= {f"{task}.{name}": value for name, value in metrics.items()}
    for name, value in (run.ranking(plan.split) or {}).items():
        values[f"{RANKING}.{name}"] = value
    card = read_record(run.folder / "model" / "card.json", "delete the run and start again")
    known = {column.name: values.get(column.name) for column in columns}
    kept, monitor = card["val"]["epoch"], card["val"].get("monitor", LOSS)
    return RunRecord(key, seed, *run.places, kept, len(epochs), known, result, monitor)


@lru_cache
def _count_parameters(run: Path) -> float:
    """Learned numbers of the whole model."""
    return float(sum(p.numel() for p in load_artifact(run).model.parameters()))


def _group(
    plan: ComparisonPlan,
    schema: Schema,
    keys: Sequence[str],
    *,
    records: Sequence[RunRecord],
    columns: Sequence[Column],
) -> Group:
    contenders = {key: plan.contenders[key] for key in keys}
    experts = {key: _experts(json.dumps(c.config)) for key, c in contenders.items()}
    sparse = [key for key in keys if not experts[key].endswith(NOT_SPARSE)]
    runs = {key: [r for r in records if r.contender == key] for key in keys}
    values = {c.name: {key: values_by_seed(runs[key], c) for key in keys} for c in columns}
    tests = [
        test
        for column in columns
        if column.better
        for test in compare_best(column, {key: values[column.name][key] for key in sparse})
    ]
    names = [task.name for task in schema.tasks]
    weights = dict(zip(names, contenders[keys[0]].weights, strict=True))

    def row(key: str) -> Row:
        return Row(
            contender=key,
            router=contenders[key].router,
            experts=experts[key],
            k_sparse=key in sparse,
            runs=len(runs[key]),
            cells={name: spread([*of[key].values()]) for name, of in values.items() if of[key]},
            bold=tuple(test.column for test in tests if is_bold(test) and test.best == key),
        )

    return Group(weights, [row(key) for key in contenders], tests)


@lru_cache
def _experts(raw: str) -> str:
    config = parse_config(json.loads(raw))
    return overviews(config)[config.router.name].training or "" if config.router else ""


def values_by_seed(runs: Iterable[RunRecord], column: Column) -> dict[int, float]:
    """Value per seed where it is defined."""
    values = {run.seed: run.values[column.name] for run in runs}
    return {seed: value for seed, value in values.items() if value is not None}


def compare_best(column: Column, values: dict[str, dict[int, float]]) -> list[TTest]:
    """Tests of the best mean against every other one, by p-value of their family.

    `values`: per contender the value of each seed. Empty unless two contenders have values.
    """
    higher = column.better == "higher"
    means = {key: spread(list(runs.values())).mean for key, runs in values.items() if runs}
    best, *others = sorted(means, key=means.__getitem__, reverse=higher) or [""]
    tests = [_p_values(values[best], values[key], higher) for key in others]
    unpaired, paired = ([p[side] for p in tests] for side in (0, 1))
    columns = zip(others, unpaired, holm(unpaired), paired, holm(paired), strict=True)
    return [
        TTest(column.name, best, other, other == others[0], *p_values)
        for other, *p_values in columns
    ]


def _p_values(
    best: dict[int, float], other: dict[int, float], higher: bool
) -> tuple[float | None, float | None]:
    """Unpaired, and paired over the seeds that both have."""
    seeds = sorted(best.keys() & other.keys())
    pairs = [best[seed] for seed in seeds], [other[seed] for seed in seeds]
    return unpaired_p([*best.values()], [*other.values()], higher), paired_p(*pairs, higher)


def is_bold(test: TTest) -> bool:
    """The paper's rule: better than the best other k-sparse router, one-sided unpaired t-test."""
    return test.runner_up and test.unpaired is not None and test.unpaired < LEVEL
