"""The loss of the next item: a softmax over the catalogue at every positive row.

Axes: B rows, P positive rows, N items, D width of a vector.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.config.settings import Config
from recsys_moe.data.rows import Batch
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import first_columns, kind_of, positive_task
from recsys_moe.model.output import Output
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.request import of_items
from recsys_moe.schema import Schema
from recsys_moe.train.processes.devices import all_sum, process_count

CELLS = 1 << 22
"""Scores computed at a time: 16 MB."""


class NextItem:
    """Full cross-entropy of the items of positive rows, by `Recommender.catalogue_scores`.

    The softmax over all items is what sequence models are best trained with (Klenitskiy and
    Vasilev 2023, arXiv 2309.07602): one drawn negative a positive costs a third of NDCG.
    """

    def __init__(self, weight: float, task: int, column: int) -> None:
        """`task`: whose label 1 is a positive; `column`: of the logits."""
        self.weight, self.task, self.column = weight, task, column

    def __call__(self, model: Recommender, output: Output, batch: Batch) -> Tensor:
        """Weighted mean over the positive rows of all processes, as this process' part of it.

        Rows whose item is hidden or unknown count for nothing."""
        item_B = batch.item.long()
        positive_B = (batch.labels[:, self.task] == 1) & (item_B >= 0) & (item_B < model.num_items)
        place_P = positive_B.nonzero()[:, 0]
        count = all_sum(torch.tensor(float(len(place_P)), device=item_B.device)) / process_count()
        user_PD = output.aux["users"][place_P]
        items = torch.arange(model.num_items, device=item_B.device)
        item_ND = model.encode_items(of_items(items))
        total = self._sum(model, user_PD, item_ND, item_B[place_P])
        return self.weight * total / count.clamp(min=1)

    def _sum(self, model: Recommender, user_PD: Tensor, item_ND: Tensor, item_P: Tensor) -> Tensor:
        at_once = max(1, CELLS // len(item_ND))
        total = user_PD.new_zeros(()) + 0 * user_PD.sum()
        for user_XD, item_X in zip(user_PD.split(at_once), item_P.split(at_once), strict=True):
            scores: Any = model.catalogue_scores(user_XD, item_ND, self.column)
            total = total + F.cross_entropy(scores.float(), item_X, reduction="sum")
        return total


def build_next_item(config: Config, schema: Schema) -> NextItem | None:
    """None where `model.next_item_weight` is 0. Raises ConfigError for data without positives and
    models without a product of vectors."""
    weight, task = config.model.next_item_weight, positive_task(schema.tasks)
    if not weight:
        return None
    if task is None:
        raise ConfigError(
            f"model.next_item_weight must be 0 for data without a binary task, got {weight:g}"
        )
    if getattr(config.model, "bilinear_rank", 1) == 0:
        raise ConfigError(
            f"model.next_item_weight must be 0 with model.bilinear_rank=0, got {weight:g}; set "
            f"model.bilinear_rank={config.model.embedding_dim} and model.bilinear_diagonal=true"
        )
    kinds = [kind_of(one) for one in schema.tasks]
    return NextItem(weight, task, list(first_columns(kinds))[task])
