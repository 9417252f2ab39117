"""The loss of the next item: a softmax over the catalogue at every positive row.

Axes: B rows, P positive rows, N items, D width of a vector, R of a product's factors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
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

MOST_ITEMS = 50_000
"""Of a full softmax; of more items some are drawn."""
DRAWN = 1024
"""Items that all rows of a batch share as negatives."""
CELLS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Scores computed at a time: on a CPU 2 MB, which stay in a core's cache."""


class NextItem:
    """Cross-entropy of the items of positive rows, by `Recommender.product`.

    The softmax over all items is what sequence models are best trained with (Klenitskiy and
    Vasilev 2023, arXiv 2309.07602): one drawn negative a positive costs a third of NDCG. Beyond
    MOST_ITEMS it is estimated from DRAWN items, whose scores are corrected for how few they are.
    """

    def __init__(self, weight: float, task: int, column: int) -> None:
        """`task`: whose label 1 is a positive; `column`: of the logits."""
        self.weight, self.task, self.column = weight, task, column

    def __call__(self, model: Recommender, output: Output, batch: Batch, seed: int) -> Tensor:
        """Weighted mean over the positive rows of all processes, as this process' part of it.

        Rows whose item is hidden or unknown count for nothing. `seed`: of drawn items."""
        item_B = batch.item.long()
        positive_B = (batch.labels[:, self.task] == 1) & (item_B >= 0) & (item_B < model.num_items)
        place_P = positive_B.nonzero()[:, 0]
        count = all_sum(torch.tensor(float(len(place_P)), device=item_B.device)) / process_count()
        user_PD, item_P = output.aux["users"][place_P], item_B[place_P]
        loss = self._sampled if model.num_items > MOST_ITEMS else self._full
        return self.weight * loss(model, user_PD, item_P, seed) / count.clamp(min=1)

    def _full(self, model: Recommender, user_PD: Tensor, item_P: Tensor, seed: int) -> Tensor:
        """A sum over the rows."""
        every_N = torch.arange(model.num_items, device=item_P.device)
        factors = self._factors(model, user_PD, every_N)
        with torch.autocast(item_P.device.type, enabled=False):
            total: Tensor = SoftmaxLoss.apply(*factors, item_P)
        return total

    def _sampled(self, model: Recommender, user_PD: Tensor, item_P: Tensor, seed: int) -> Tensor:
        """The same from DRAWN uniform items S: each stands for (N - 1) / DRAWN of the others."""
        generator = torch.Generator().manual_seed(seed)
        item_S = torch.randint(model.num_items, (DRAWN,), generator=generator).to(item_P.device)
        target_T, place_P = item_P.unique(return_inverse=True)
        x_PR, y_NR = self._factors(model, user_PD, torch.cat([target_T, item_S]))
        with torch.autocast(item_P.device.type, enabled=False):
            own_P1 = (x_PR * y_NR[place_P]).sum(1, keepdim=True)
            other_PS = x_PR @ y_NR[len(target_T) :].t() + math.log((model.num_items - 1) / DRAWN)
            other_PS = other_PS.masked_fill(item_S == item_P[:, None], -torch.inf)
            return -torch.cat([own_P1, other_PS], 1).log_softmax(1)[:, 0].sum()

    def _factors(self, model: Recommender, user_PD: Tensor, item_N: Tensor) -> list[Tensor]:
        encoders = model.encoders
        if encoders is not None and encoders.user_bag is not None:
            # In the bag of its own item a row's user would tell the item from all others.
            model = model.with_parts(encoders=encoders.without("user_bag"))
        factors = model.product(user_PD, model.encode_items(of_items(item_N)), self.column)
        assert factors is not None  # `build_next_item` refuses such models
        return [one.float() for one in factors]


class SoftmaxLoss(torch.autograd.Function):
    """sum_p -log softmax(x_p Y^T)[item_p] for factors x (P, R) and Y (N, R).

    Its gradients are made beside the values, a few rows at a time, so that the scores (P, N) are
    never whole in memory: twice as fast as cross_entropy on a CPU at 8,000 x 3,416.
    """

    @staticmethod
    def forward(ctx: Any, x_PR: Tensor, y_NR: Tensor, item_P: Tensor) -> Tensor:
        gradient_PR, gradient_NR = torch.empty_like(x_PR), torch.zeros_like(y_NR)
        total = x_PR.new_zeros(())
        at_once = max(1, CELLS.get(x_PR.device.type, 1 << 26) // len(y_NR))
        for start in range(0, len(x_PR), at_once):
            some = slice(start, start + at_once)
            log_XN = (x_PR[some] @ y_NR.t()).log_softmax(-1)
            target_X1 = item_P[some, None]
            total -= log_XN.gather(1, target_X1).sum()
            off_XN = log_XN.exp_()
            off_XN.scatter_add_(1, target_X1, off_XN.new_full(target_X1.shape, -1.0))
            torch.mm(off_XN, y_NR, out=gradient_PR[some])
            gradient_NR.addmm_(off_XN.t(), x_PR[some])
        ctx.save_for_backward(gradient_PR, gradient_NR)
        return total

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, Tensor, None]:
        gradient_PR, gradient_NR = ctx.saved_tensors
        return above[0] * gradient_PR, above[0] * gradient_NR, None


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
