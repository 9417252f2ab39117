"""GRU: a gated recurrence (Cho et al., arXiv 1406.1078; GRU4Rec: arXiv 1511.06939); by rank alone.

Axes: M windows, L places, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recsys_moe.model.encoders.mixers.base import Mixer, State, after


class GRU(Mixer):
    """The hidden units of torch's GRU, as many as the width."""

    def __init__(self, dim: int, length: int, heads: int = 2) -> None:
        super().__init__(dim, length, heads)
        self.gru = nn.GRU(dim, dim, batch_first=True)

    def forward(self, x_MLD: Tensor, time_ML: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # torch's fixes the number of windows in the graph
            return self.extend(x_MLD, time_ML, self.start(x_MLD.shape[0]))
        output: Tensor = self.gru(x_MLD)[0]
        return output

    def read(self, x_MLD: Tensor, time_ML: Tensor, count_M: Tensor) -> tuple[Tensor, State]:
        output_MLD = self(x_MLD, time_ML)
        return output_MLD, (after(output_MLD, count_M),)

    def start(self, rows: int) -> State:
        """The hidden units (M, D)."""
        return (next(self.gru.parameters()).new_zeros(rows, self.dim),)

    def step(self, x_MD: Tensor, time_M: Tensor, state: State) -> tuple[Tensor, State]:
        hidden_MD = torch.gru_cell(x_MD, state[0], *self.gru.parameters())
        return hidden_MD, (hidden_MD,)
