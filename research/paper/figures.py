"""The numbers behind the figures of the recipes, from the runs of a comparison."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from recsys_moe.lab.compare.results import Results, RunRecord
from recsys_moe.lab.compare.significance import Spread, spread
from research.paper.inference_gap import Gap, distances, inference_gap, selected_by


@dataclass(frozen=True)
class Balance:
    """How evenly a contender's experts are loaded, and at what loss."""

    contender: str
    task: str
    evenness: Spread
    """Entropy of the load over the log of the number of experts: 1 is even, 0 is one expert."""
    least: Spread
    """The smallest share of choices that an expert gets."""
    most: Spread
    loss: Spread


@dataclass(frozen=True)
class Histogram:
    """Share of rows per bin of loss, the same bins for all models of a task."""

    router: str
    inference: str
    task: str
    mean: float
    edges: list[float]
    shares: list[float]


def balances(results: Results) -> list[Balance]:
    """Per contender and task, over seeds, on the split that was evaluated."""
    return [
        _balance(row.contender, task, [r for r in results.runs if r.contender == row.contender])
        for group in results.groups
        for row in group.rows
        for task in group.weights
    ]


def _balance(contender: str, task: str, records: list[RunRecord]) -> Balance:
    loads = [record.details["routing"][task]["load"] for record in records]
    return Balance(
        contender,
        task,
        spread([evenness(load) for load in loads]),
        spread([min(load) / sum(load) for load in loads]),
        spread([max(load) / sum(load) for load in loads]),
        spread([float(record.values["loss"] or math.nan) for record in records]),
    )


def evenness(load: list[float]) -> float:
    """Entropy of the shares over log(number of experts), in 0..1."""
    total = sum(load)
    shares = [part / total for part in load if part > 0]
    return -sum(share * math.log(share) for share in shares) / math.log(len(load))


def inference_figure(
    results: Results, out: Path, data: Path
) -> tuple[list[Histogram], list[dict[str, object]]]:
    """Histograms and Wasserstein distances of the runs of the first seed that has any.

    A dense router is made as sparse as the k-sparse ones beside it.
    """
    first = min(record.seed for record in results.runs)
    runs = [out / record.run for record in results.runs if record.seed == first]
    k = max((selected for run in runs if (selected := selected_by(run))), default=2)
    gaps = [inference_gap(run, data, results.split, k) for run in runs]
    return histograms(gaps), [asdict(distance) for distance in distances(gaps)]


def histograms(gaps: list[Gap], bins: int = 60) -> list[Histogram]:
    """Bins of equal width from 0 to the 99th percentile of all; the last takes what lies above."""
    import numpy as np

    histograms = []
    for task in gaps[0].losses:
        everything = np.concatenate(
            [values for gap in gaps for values in gap.losses[task].values()]
        )
        edges = np.linspace(0, float(np.quantile(everything, 0.99)), bins + 1)
        for gap in gaps:
            for way, values in gap.losses[task].items():
                counts, _ = np.histogram(np.minimum(values, edges[-1]), edges)
                shares = (counts / len(values)).tolist()
                mean = gap.mean(task, way)
                histograms.append(Histogram(gap.router, way, task, mean, edges.tolist(), shares))
    return histograms
