"""What a plain logistic factorisation of watched pairs reaches, by how its negatives weigh.

    python -m research.plain_factors --data data/ml-100k

All pairs of users and items are in each of its steps, so that neither sampling nor batches play a
part: what is left is the objective. Validation rows; each line is the best of its steps by NDCG.
The matrix of pairs is dense: MovieLens-100K, not more. See research/accuracy.md.

Axes: U users, I items, R rank.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from research.accuracy.judge import Judge
from research.accuracy.rows import Scores

RANK, RATE, STEPS, LOOK_EVERY, POWER, DROPOUT = 32, 0.02, 400, 50, 0.75, 0.5


@dataclass(frozen=True)
class Variant:
    what: str
    user_power: float
    """Negatives of a user weigh as its positives to this power; all together as the positives."""
    penalty: float
    """Times the sum of squares of the vectors, beside the sum of the losses."""
    by_items: bool = False
    """Users are the sum of their items' vectors over the root of their number."""


VARIANTS = (
    Variant("negatives as positives", 1.0, 3.0),
    Variant("negatives alike", 0.0, 2.5),
    Variant("and users by their items", 0.0, 2.5, by_items=True),
)


class Factors:
    """Scores u v + b_i + c_u of all pairs; in training without what the pair itself says."""

    def __init__(self, positive_UI: Tensor, by_items: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        users, items = positive_UI.shape
        start = (torch.randn(n, RANK, generator=generator) * 0.05 for n in (users, items, items))
        self.user_UR, self.item_IR, self.of_item_IR = (one.requires_grad_() for one in start)
        self.b_I, self.c_U1 = (torch.zeros(n, requires_grad=True) for n in ((items,), (users, 1)))
        self.by_items, self.generator = by_items, generator
        self.share_UI = positive_UI / positive_UI.sum(1, keepdim=True).clamp(min=1).sqrt()

    @property
    def vectors(self) -> list[Tensor]:
        return [self.item_IR, self.of_item_IR if self.by_items else self.user_UR]

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.vectors, self.b_I, self.c_U1]

    def scores(self, *, training: bool) -> Tensor:
        """(U, I)."""
        alone_UI = self.b_I + self.c_U1
        if not self.by_items:
            return self.user_UR @ self.item_IR.t() + alone_UI
        share_UI = self.share_UI
        if training:
            kept_UI = torch.rand(share_UI.shape, generator=self.generator) >= DROPOUT
            share_UI = share_UI * kept_UI / (1 - DROPOUT)
        together_UI = (share_UI @ self.of_item_IR) @ self.item_IR.t()
        if training:
            together_UI = together_UI - share_UI * (self.of_item_IR * self.item_IR).sum(1)
        return together_UI + alone_UI


def weights_and_offsets(positive_UI: Tensor, user_power: float) -> tuple[Tensor, Tensor]:
    """Of negatives, and what they move logits by: as data.popularity_exponent and its user's."""
    rate_I = (positive_UI.sum(0) + 1) ** POWER
    free_UI, count_U1 = rate_I * (1 - positive_UI), positive_UI.sum(1, keepdim=True)
    sum_U1 = free_UI.sum(1, keepdim=True)
    mass_U1 = count_U1**user_power
    mass_U1 = mass_U1 / mass_U1.sum() * count_U1.sum()
    uniform_U1 = 1 / (positive_UI.shape[1] - count_U1)
    offset_UI = (rate_I / sum_U1 / uniform_U1).log() + (mass_U1 / count_U1).log()
    return free_UI / sum_U1 * mass_U1, offset_UI


def best(judge: Judge, positive_UI: Tensor, variant: Variant) -> dict[str, float | None]:
    """The figures of its best step by NDCG."""
    factors = Factors(positive_UI, variant.by_items)
    weight_UI, offset_UI = weights_and_offsets(positive_UI, variant.user_power)
    optimizer = torch.optim.Adam(factors.parameters, lr=RATE)
    found: list[dict[str, float | None]] = []
    for step in range(1, STEPS + 1):
        logit_UI = factors.scores(training=True) - offset_UI
        losses = (positive_UI * F.softplus(-logit_UI) + weight_UI * F.softplus(logit_UI)).sum()
        penalty = variant.penalty * sum(vector.square().sum() for vector in factors.vectors)
        optimizer.zero_grad()
        (losses + penalty).backward()
        optimizer.step()
        if step % LOOK_EVERY == 0:
            with torch.no_grad():
                scores = Scores(watch=factors.scores(training=False).numpy(), rating=None)
            found.append({"step": step, **judge.figures(scores, "val", probabilities=True)})
    return max(found, key=lambda one: one["ndcg"] or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    judge = Judge(parser.parse_args().data)
    rows = judge.part("train")
    watched = rows.watch > 0
    positive_UI = torch.zeros(judge.schema.user.size, judge.schema.item.size)
    positive_UI[np.asarray(rows.user)[watched], np.asarray(rows.item)[watched]] = 1
    print("| | step | NDCG@10 | AUC | BCE |\n|---|---|---|---|---|")
    for variant in VARIANTS:
        one = best(judge, positive_UI, variant)
        figures = " | ".join(f"{one[name]:.4f}" for name in ("ndcg", "auc", "bce"))
        print(f"| {variant.what} | {one['step']} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
