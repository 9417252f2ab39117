"""The columns of a comparison: what each is called, and which way is better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recsys_moe.inference.evaluation.ranking import LENGTH
from recsys_moe.inference.evaluation.ranking_report import titles
from recsys_moe.kinds import HIGHER_IS_BETTER, KINDS, metric_title
from recsys_moe.schema import Schema

RANKING = "ranking"
"""Of `ranking.ndcg` and the like."""
RANKING_NOTE = (
    f"NDCG, recall, MRR, hit rate at {LENGTH}, coverage and popularity: of each user's top {LENGTH}"
    " items of the whole catalogue, without the user's positives in earlier splits; "
    "GAUC: AUC per user, weighted by rows. As in `evaluate --ranking`."
)


@dataclass(frozen=True)
class Column:
    name: str
    title: str
    better: str | None
    """`higher`, `lower`, or None for a cost and the like, which is not tested."""
    digits: int


def columns_of(schema: Schema, ranking: bool = False) -> list[Column]:
    """Loss, each task's headline metric, figures of ranked lists if asked for, costs."""
    columns = [Column("loss", "loss", "lower", 4)]
    for task in schema.tasks:
        metric = KINDS[task.kind].headline
        better = "higher" if metric in HIGHER_IS_BETTER else "lower"
        title = f"{task.name} {metric_title(metric)}"
        columns.append(Column(f"{task.name}.{metric}", title, better, 4))
    return [
        *columns,
        *(_ranking_columns() if ranking else ()),
        Column("experts_training", "experts, training", None, 2),
        Column("experts_inference", "experts, inference", None, 2),
        Column("seconds_per_epoch", "s/epoch", None, 1),
        Column("parameters", "parameters", None, 0),
    ]


def _ranking_columns() -> Iterator[Column]:
    """Coverage and popularity say what lists are made of: neither way is better."""
    for name, title in titles(LENGTH).items():
        better = None if name in ("coverage", "popularity") else "higher"
        yield Column(f"{RANKING}.{name}", title, better, 4)
