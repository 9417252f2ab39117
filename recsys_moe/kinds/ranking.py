"""ranking: labels 0 and 1, of which each 1 is to score above the 0s of its user."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from recsys_moe.kinds.binary import Binary, BinaryMetrics
from recsys_moe.kinds.judging import Constant, Figures, Judging

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1024
"""Rows among which pairs are formed; bounds time and memory of large batches."""


class Ranking(Binary):
    """Pairwise logistic loss, log(1 + exp(score of the 0 - score of the 1)).

    Burges et al. 2005, "Learning to rank using gradient descent"; with drawn negatives it is the
    loss of Rendle et al. 2009, "BPR". A row is compared with the rows of the other label of its
    user among the BLOCK rows around it in the batch, or with those of all users where its user has
    none; its loss is the mean over them, weighted. On several devices each compares its own rows.
    The score is in 0..1 and no probability; the calibrated one is.
    """

    name = "ranking"
    metrics = ("auc", "pairwise", "ece_calibrated")
    loss_metric = "pairwise"
    is_probability = False

    def constant(self, counts: Mapping[str, float]) -> Constant:
        """All pairs are ties."""
        return super().constant(counts)._replace(loss=math.log(2))

    def row_losses(
        self,
        logits_B: Tensor,
        labels_B: Tensor,
        *,
        user_B: Tensor | None = None,
        weight_B: Tensor | None = None,
    ) -> Tensor:
        import torch

        def block(start: int) -> Tensor:
            rows, optional = slice(start, start + BLOCK), (user_B, weight_B)
            more = (None if column_B is None else column_B[rows] for column_B in optional)
            return _pair_losses(logits_B[rows], labels_B[rows], *more)

        return torch.cat([block(start) for start in range(0, max(len(labels_B), 1), BLOCK)])

    def measure(self) -> RankingMetrics:
        return RankingMetrics()

    def baselines(self, on: Judging) -> dict[str, Figures]:
        """`popularity`, an item's positives in training; `constant`, equal scores."""
        popularity = super().baselines(on)["popularity"]
        loss = None if popularity["auc"] is None else math.log(2)
        return {"popularity": popularity, "constant": {"pairwise": loss}}

    def undefined(self, counts: Mapping[str, float]) -> tuple[str, ...]:
        """Pairs need both classes."""
        found = super().undefined(counts)
        return (*found, "pairwise") if found == ("auc",) else found


def _pair_losses(
    logits_B: Tensor, labels_B: Tensor, user_B: Tensor | None, weight_B: Tensor | None
) -> Tensor:
    from torch.nn import functional

    positive_B, negative_B = labels_B == 1, labels_B == 0
    pairs_BB = positive_B[:, None] & negative_B | negative_B[:, None] & positive_B
    if user_B is not None:
        own_BB = pairs_BB & (user_B[:, None] == user_B)
        pairs_BB = own_BB.where(own_BB.any(1, keepdim=True), pairs_BB)
    weight_BB = pairs_BB.to(logits_B.dtype)
    if weight_B is not None:
        weight_BB = weight_BB * weight_B
    sign_B = positive_B.to(logits_B.dtype) * 2 - 1
    losses_BB = functional.softplus((logits_B - logits_B[:, None]) * sign_B[:, None])
    total_B = weight_BB.sum(1)
    return (losses_BB * weight_BB).sum(1) / total_B.masked_fill(total_B == 0, 1)


class RankingMetrics(BinaryMetrics):
    """AUC, calibration error of the calibrated score, and the mean loss of pairs (`pairwise`).

    The loss is that of all rows in their order, in blocks, whatever the user: an epoch's batches
    hold few rows of a user, and their size is no part of the figure.
    """

    def loss(self, logits_B: Tensor, labels_B: Tensor) -> float:
        return 0.0

    def compute(self) -> Figures:
        found = super().compute()
        auc = found["auc"]
        loss = None if auc is None else float(Ranking().row_losses(*self.rows()).double().mean())
        return {
            "auc": auc,
            "pairwise": loss,
            **{name: found[name] for name in ("ece_calibrated", "rows", "positive")},
        }
