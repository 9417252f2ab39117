"""Non-personalised baselines on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from recsys_moe.data.columns import Rows
from recsys_moe.data.streaming import labelled
from recsys_moe.kinds import HIGHER_IS_BETTER, kind_of, metric_title
from recsys_moe.kinds.judging import Figures, Judging
from recsys_moe.schema import Schema, Task

Baselines = dict[str, dict[str, Figures]]
"""Per task and baseline the metrics; None as in the metrics of a model."""


def baselines(train: Rows, rows: Rows, schema: Schema) -> Baselines:
    """Fitted on `train`, evaluated on `rows`; by task, those of its kind."""
    sizes = schema.user.size + 1, schema.item.size + 1

    def judged(t: int, task: Task) -> dict[str, Figures]:
        kind, labels = kind_of(task), partial(labelled, task=t)
        counts = schema.counts("train", task.name, *kind.needs)
        return kind.baselines(Judging(partial(labels, train), partial(labels, rows), sizes, counts))

    return {task.name: judged(t, task) for t, task in enumerate(schema.tasks)}


def missed(result: dict[str, Any]) -> Iterator[str]:
    """A line for every metric that does not beat its `baselines`."""
    for task, named in result.get("baselines", {}).items():
        for name, metrics in named.items():
            for metric, bound in metrics.items():
                own = result["tasks"][task][metric]
                if own is None or bound is None:
                    continue
                if not (own > bound if metric in HIGHER_IS_BETTER else own < bound):
                    figure = f"{task} {metric_title(metric)}"
                    yield not_beaten(result, figure, own, name, bound=bound)


def not_beaten(result: dict[str, Any], figure: str, own: float, name: str, *, bound: float) -> str:
    """The warning that a metric of the split of `result` does not beat a baseline."""
    baseline = name.replace("_", " ")
    return (
        f"{result['split']}: {figure} {own:.4f} does not beat the {baseline} baseline {bound:.4f}"
    )
