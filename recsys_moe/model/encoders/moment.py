"""When a row asks, and what its user had done by then, added to the user's vector.

Axes: B rows, C features, D width of the embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.encoders.context import Context
from recsys_moe.model.request import Moment, Request

HOUR, DAY = 3_600, 86_400
WIDEST = 3.0
"""Deviations beyond which a number counts as this: requests come long after training."""
GAP_STEPS = 26
"""Doublings of 1 + the seconds since the last event that are told apart; the last is a year."""
SIZES = {"hour": 24, "weekday": 7, "gap": None, "events": None}
"""Categories of each feature of users, in this order; None: a number."""


class UserMoment(Context):
    """Embeddings of the hour and the weekday (UTC, 0: Monday), and vectors for log(1 + seconds
    since the user's last event) and log(1 + events), both standardised on the training rows.

    What is unknown adds nothing, as the mean does.
    """

    mean_C: Tensor
    std_C: Tensor

    def __init__(self, names: Sequence[str], dim: int) -> None:
        """`names`: of SIZES."""
        super().__init__([SIZES[name] for name in names], dim)
        self.names = [*names]
        self.register_buffer("mean_C", torch.zeros(len(self.names)))
        self.register_buffer("std_C", torch.ones(len(self.names)))

    def forward(self, request: Request) -> Tensor:
        values_BC = None
        if request.moment is not None:
            raw_BC = self.values(request.moment)
            number_BC = ((raw_BC - self.mean_C) / self.std_C).clamp(-WIDEST, WIDEST)
            values_BC = torch.where(self.is_number_C, number_BC, raw_BC)
        return super().forward(request._replace(context=values_BC))

    def values(self, moment: Moment) -> Tensor:
        """(B, C) float32, NaN where unknown: categories, and numbers before standardisation."""
        return torch.stack([_user_value(name, moment) for name in self.names], 1)

    def standardise(self, mean_C: Tensor, std_C: Tensor) -> None:
        """Set means and deviations of the numbers among `values`."""
        self.mean_C.copy_(mean_C)
        self.std_C.copy_(std_C)


class SinceLast(nn.Module):
    """What the time since the user's last event makes of what the events say: who goes on at once
    wants something else than who comes back after a month.

    x + V gelu(W norm(x) + e(g)), g = log2(1 + seconds), e linear between one vector for each whole
    g. V starts at 0. Without a time or an event: x. H: width inside.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim)
        self.gap_GH = nn.Parameter(torch.zeros(GAP_STEPS, 4 * dim))
        self.narrow_HD = nn.Parameter(torch.zeros(4 * dim, dim))

    def forward(self, said_BD: Tensor, moment: Moment | None) -> Tensor:
        """(B, D), as `said_BD`."""
        if moment is None:
            return said_BD
        gap_B = (moment.time - moment.last).clamp(min=0)
        step_B = (1 + gap_B.nan_to_num(0.0)).log2().clamp(max=GAP_STEPS - 1).float()
        low_B = step_B.floor().clamp(max=GAP_STEPS - 2)
        high_B1, low_B = (step_B - low_B)[:, None], low_B.long()
        low_BH, high_BH = F.embedding(low_B, self.gap_GH), F.embedding(low_B + 1, self.gap_GH)
        hidden_BH = F.gelu(self.wide(self.norm(said_BD)) + low_BH.lerp(high_BH, high_B1))
        is_known_B1 = ~gap_B.isnan()[:, None]
        return said_BD + (hidden_BH @ self.narrow_HD) * is_known_B1


def _user_value(name: str, moment: Moment) -> Tensor:
    if name == "gap":
        return (moment.time - moment.last).clamp(min=0).log1p().float()
    if name == "events":
        return moment.events.log1p()
    unit, size, shift = (HOUR, 24, 0) if name == "hour" else (DAY, 7, 3)  # 1970 began on a Thursday
    count_B = moment.time.nan_to_num(0.0).div(unit, rounding_mode="floor").long()
    return torch.where(moment.time.isnan(), torch.nan, ((count_B + shift) % size).float())


def mean_and_std(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Of the known values of each column (C,), from rows (N, C); 0 and 1 where there are none, and
    a deviation of 1 where all are equal."""
    sums_3C: Tensor | float = 0.0
    for values_NC in parts:
        x_NC = values_NC.double().nan_to_num(0.0)
        sums_3C += torch.stack([(~values_NC.isnan()).sum(0), x_NC.sum(0), x_NC.square().sum(0)])
    count_C, sum_C, square_C = torch.as_tensor(sums_3C)
    mean_C = sum_C / count_C.clamp(min=1)
    std_C = (square_C / count_C.clamp(min=1) - mean_C.square()).clamp(min=0).sqrt()
    return mean_C.float(), torch.where(std_C > 1e-3, std_C, 1.0).float()
