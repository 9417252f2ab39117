"""X-MoE: cosine routing in a low dimension (Chi et al. 2022, https://arxiv.org/abs/2204.09179).

Axes: B batch, E experts, D input width, R routing width.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from recsys_moe.routers.base import Router, RouterShape, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import kept_softmax, largest_k, unit_rows
from recsys_moe.routers.settings import NO_ROWS, KConfig

MIN_TEMPERATURE = 0.01


class XMoERouter(Router):
    """Keep the k largest entries of softmax(cos(a_e, Px) / temperature), not renormalised.

    P projects to R = floor(E / 2) dimensions, at least 1; each expert has an embedding a_e there.
    The cosine is taken per expert, as in X-MoE; the MOESART paper prints the norm of the whole
    matrix, which would not be a similarity. The temperature is learned as exp(theta) and kept
    at 0.01 or above. Logits of a row differ by at most 2 / temperature. A zero Px has zero logits.

    The authors' torchscale gate divides by no temperature and leaves Px unnormalised; we follow
    the paper's formula.
    """

    class Config(KConfig):
        name: str = "xmoe"
        temperature: float = Field(default=0.3, ge=MIN_TEMPERATURE, allow_inf_nan=False)
        """Temperature at the start of training, where it is learned; >= 0.01."""

        @property
        def idle_penalties(self) -> dict[str, str]:
            return NO_ROWS

    summary = "top-k of a softmax over cosine similarities (X-MoE)"

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        width = max(shape.num_experts // 2, 1)
        self.projection = nn.Linear(shape.input_dim, width, bias=False)
        self.embedding_ER = nn.Parameter(torch.empty(shape.num_experts, width))
        self.theta = nn.Parameter(torch.tensor(math.log(config.temperature)))
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.orthogonal_(self.embedding_ER, gain=0.32)

    @property
    def max_selected(self) -> int:
        return self.config.k

    @property
    def temperature(self) -> Tensor:
        """The current temperature, a scalar of at least 0.01."""
        return self.theta.exp().clamp(min=MIN_TEMPERATURE)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        projected_BR = gate_logits(self.projection, x_BD)
        with torch.autocast(x_BD.device.type, enabled=False):
            cosines_BE = unit_rows(projected_BR) @ unit_rows(self.embedding_ER).t()
        logits_BE = cosines_BE / self.temperature
        return kept_softmax(logits_BE, largest_k(logits_BE, self.config.k))
