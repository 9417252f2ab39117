"""ordinal: a few ordered levels, such as stars, predicted by their mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from recsys_moe.kinds.base import Values
from recsys_moe.kinds.judging import Constant, Figures, Judging
from recsys_moe.kinds.levels import LEVEL, level_counts, levels_in, shares_of
from recsys_moe.kinds.regression import Regression, RegressionMetrics

if TYPE_CHECKING:
    from torch import Tensor

TINY = 1e-300
"""Least difference of two cumulative shares."""


class Ordinal(Regression):
    """Cumulative logits: P(label > level k) = sigmoid(logit - t_k) (McCullagh 1980, "Regression
    models for ordinal data").

    The thresholds t_k are those of the training labels: a logit of 0 gives each level its share.
    One logit says where a row lies, so that items can be ranked by it. Axes: K levels.
    """

    name = "ordinal"
    metrics: ClassVar[tuple[str, ...]] = ("mse", "rmse", "mae", "accuracy", "log_loss")
    loss_metric = "log_loss"
    higher: ClassVar[tuple[str, ...]] = ("accuracy",)
    has_levels = True
    has_noise = False
    likelihood = 1.0
    _rule = "a finite number"

    @property
    def rule(self) -> str:
        return f"one of {', '.join(f'{v:g}' for v in self.levels)}" if self.levels else super().rule

    def invalid(self, values_N: Values) -> Values:
        wrong_N = super().invalid(values_N)
        if not self.levels:
            return wrong_N
        known_N = values_N == self.levels[0]
        for level in self.levels[1:]:
            known_N = known_N | (values_N == level)
        return ~known_N

    def statistics(self, labels_N: Any) -> dict[str, Any]:
        return super().statistics(labels_N) | level_counts(labels_N)

    def counted(self, sums: Mapping[str, Any]) -> dict[str, float]:
        return super().counted(sums) | {k: int(v) for k, v in levels_in(sums).items()}

    def weighted(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        return super().weighted(sums) | levels_in(sums)

    def levels_of(
        self, splits: Mapping[str, Mapping[str, float]]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """All levels, ascending, and their shares of training."""
        found = {float(key[len(LEVEL) :]) for one in splits.values() for key in levels_in(one)}
        levels = tuple(sorted(found))
        return levels, shares_of(levels, splits["train"])

    def constant(self, counts: Mapping[str, float]) -> Constant:
        loss = -sum(share * math.log(share) for share in self.shares)
        return Constant(0.0, 1.0, loss or 1.0)

    def _thresholds(self) -> list[float]:
        """t_k, K - 1 of them, ascending."""
        below = list(accumulate(self.shares))[:-1]
        return [math.log(share / max(1 - share, 1e-9)) for share in below]

    def link(self, logits: Tensor) -> Tensor:
        """The mean: the lowest level and what each step up adds times its probability."""
        steps_K = logits.new_tensor([after - before for before, after in pairwise(self.levels)])
        above = (logits[..., None] - logits.new_tensor(self._thresholds())).sigmoid()
        return self.levels[0] + (above * steps_K).sum(-1)

    def places(self, labels_B: Tensor) -> Tensor:
        """The number of each label's level. (B,)"""
        import torch

        middles = [(before + after) / 2 for before, after in pairwise(self.levels)]
        return torch.bucketize(labels_B.contiguous(), labels_B.new_tensor(middles))

    def log_probabilities(self, logits_B: Tensor) -> Tensor:
        """(B, K), by log(sigmoid(a) - sigmoid(b)) = log sigmoid(a) + log sigmoid(-b) +
        log(1 - e^(b - a))."""
        import torch
        from torch.nn import functional

        cuts = self._thresholds()
        gaps_BK = logits_B[..., None] - logits_B.new_tensor(cuts)
        zeros_B = torch.zeros_like(logits_B)[..., None]
        above_BK = torch.cat([zeros_B, functional.logsigmoid(gaps_BK)], -1)
        below_BK = torch.cat([functional.logsigmoid(-gaps_BK), zeros_B], -1)
        # In double: two thresholds about a rare level are one in float32.
        between = [math.log(max(-math.expm1(low - high), TINY)) for low, high in pairwise(cuts)]
        between_K = logits_B.new_tensor([0.0, *between, 0.0][: len(self.levels)])
        return above_BK + below_BK + between_K

    def row_loss(self, logits_B: Tensor, labels_B: Tensor) -> Tensor:
        place_B = self.places(labels_B)[..., None]
        return -self.log_probabilities(logits_B).gather(-1, place_B)[..., 0]

    def disagreement(self, first_B: Tensor, second_B: Tensor) -> Tensor:
        """(KL(p, q) + KL(q, p)) / 2 of the levels' probabilities."""
        p_BK, q_BK = self.log_probabilities(first_B), self.log_probabilities(second_B)
        return ((p_BK.exp() - q_BK.exp()) * (p_BK - q_BK)).sum(-1) / 2

    def derivatives(self, logits_N: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        from torch.nn import functional

        t_K, place_N = logits_N.new_tensor(self._thresholds()), self.places(labels_N)
        ends = (
            functional.pad(t_K, (1, 0), value=-math.inf),
            functional.pad(t_K, (0, 1), value=math.inf),
        )
        a_N, b_N = ((logits_N - end_K[place_N]).sigmoid() for end_K in ends)
        return 1 - a_N - b_N, a_N * (1 - a_N) + b_N * (1 - b_N)

    def measure(self) -> OrdinalMetrics:
        return OrdinalMetrics(self)

    def baselines(self, on: Judging) -> dict[str, Figures]:
        """Those of regression, and `frequencies`, the shares of the levels in training."""
        constant = self.measure()
        for _, _, label_N, _ in on.rows():
            constant.update(label_N.new_zeros(label_N.shape), label_N)
        judged, names = constant.compute(), ("accuracy", "log_loss")
        frequencies: Figures = {name: judged[name] for name in names}
        return super().baselines(on) | {"frequencies": frequencies}


class OrdinalMetrics:
    """Errors of the mean, share of rows whose most likely level is right, and log loss."""

    def __init__(self, kind: Ordinal) -> None:
        self.kind, self.errors = kind, RegressionMetrics()
        self.right, self.loss_sum = 0, 0.0

    def update(self, logits_B: Tensor, labels_B: Tensor) -> None:
        """Add a batch; rows whose label is NaN are left out."""
        mask_B = ~labels_B.isnan()
        logits_N, labels_N = logits_B[mask_B].detach(), labels_B[mask_B]
        self.errors.update(self.kind.link(logits_N), labels_N)
        likely_N = self.kind.log_probabilities(logits_N).argmax(-1)
        self.right += int((likely_N == self.kind.places(labels_N)).sum())
        self.loss_sum += self.kind.row_loss(logits_N, labels_N).double().sum().item()

    def merge(self, other: OrdinalMetrics) -> None:
        """Add the rows of `other`."""
        self.errors.merge(other.errors)
        self.right += other.right
        self.loss_sum += other.loss_sum

    def compute(self) -> Figures:
        """Every metric is None when no row is labelled."""
        rows = self.errors.rows
        found = self.errors.compute()
        found["accuracy"] = self.right / rows if rows else None
        found["log_loss"] = self.loss_sum / rows if rows else None
        return {name: found[name] for name in (*self.kind.metrics, "rows")}
