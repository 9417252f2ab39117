"""How old and how popular an item is when a row asks, added to the logits.

A vector of an item must not depend on time, as rankings keep what follows from it; the trend is
added beside the product of vectors instead. Axes: B rows, F features, K pieces of one, T logits, D
width of the users' vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys_moe.model.encoders.moment import HOUR, WIDEST
from recsys_moe.model.request import Moment

NAMES = ("age", "popularity")
KNOTS = (-1.5, -0.75, 0.0, 0.75, 1.5)
"""In standard deviations; a linear piece begins at each."""


class Trend(nn.Module):
    """logit_t += sum_f g_tf(x_f) + <u, a_tf> x_f, with a piecewise linear g, and u the user's
    vector: some users prefer what is new.

    x: log(1 + age in hours) and log(1 + popularity), standardised on the training rows. An item
    without an event before the time, and an unknown time, add nothing. All weights start at 0.
    """

    mean_F: Tensor
    std_F: Tensor
    knot_K: Tensor

    def __init__(self, names: Sequence[str], dim: int, logits: int) -> None:
        """`names`: of NAMES; `dim`: D; `logits`: T."""
        super().__init__()
        self.names = [*names]
        pieces = len(names) * (1 + len(KNOTS))
        self.piece_PT = nn.Parameter(torch.zeros(pieces, logits))
        self.user_DX = nn.Parameter(torch.zeros(dim, len(self.names) * logits))
        self.register_buffer("mean_F", torch.zeros(len(self.names)))
        self.register_buffer("std_F", torch.ones(len(self.names)))
        self.register_buffer("knot_K", torch.tensor(KNOTS), False)

    def forward(self, user_BD: Tensor, moment: Moment) -> Tensor:
        """(B, T)"""
        raw_BF = self.values(moment)
        known_BF1 = ~raw_BF.isnan()[..., None]
        x_BF = ((raw_BF - self.mean_F) / self.std_F).clamp(-WIDEST, WIDEST)
        x_BF1 = x_BF[..., None].nan_to_num(0.0)
        pieces_BFK = torch.cat([x_BF1, (x_BF1 - self.knot_K).relu()], -1) * known_BF1
        alone_BT = pieces_BFK.flatten(1) @ self.piece_PT
        slope_BFT = (user_BD.float() @ self.user_DX).unflatten(1, (len(self.names), -1))
        return alone_BT + (slope_BFT * x_BF1).sum(1)

    def values(self, moment: Moment) -> Tensor:
        """(B, F), NaN where unknown."""
        found = {"age": moment.age / HOUR, "popularity": moment.popularity}
        return torch.stack([found[name].log1p() for name in self.names], 1)

    def standardise(self, mean_F: Tensor, std_F: Tensor) -> None:
        """Set means and deviations of `values`."""
        self.mean_F.copy_(mean_F)
        self.std_F.copy_(std_F)
