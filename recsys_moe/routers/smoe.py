"""SMoE: the gate of Switch Transformers (Fedus et al. 2021, https://arxiv.org/abs/2101.03961)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Routing, SparseGatedRouter
from recsys_moe.routers.precision import full_precision, gate_logits
from recsys_moe.routers.selection import kept_softmax, largest_k
from recsys_moe.routers.settings import KConfig


class SMoERouter(SparseGatedRouter):
    """Keep the k largest entries of softmax(A (x * jitter) + b), without renormalising them.

    The jitter multiplies every feature of every example in training, as in the authors' code;
    the MOESART paper's "A x eps" could also be read as noise on each logit. The experts see x
    itself. Switch Transformers have k = 1 and a capacity limit; here k is free and nothing is
    dropped. The gradient reaches every logit through the denominator, also with k = 1.
    """

    class Config(KConfig):
        name: str = "smoe"
        jitter: float = Field(default=0.02, ge=0, lt=1)
        """The router's input is multiplied by U(1 - jitter, 1 + jitter) in training; [0, 1)."""

    summary = "top-k of a softmax over a jittered input, not renormalised (Switch)"

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        x_BD = full_precision(x_BD)  # before the jitter: bf16 has steps of 0.008 around 1
        logits_BE = gate_logits(self.gate, self._jittered(x_BD) if self.training else x_BD)
        return kept_softmax(logits_BE, largest_k(logits_BE, self.config.k))

    def _jittered(self, x_BD: Tensor) -> Tensor:
        low, high = 1 - self.config.jitter, 1 + self.config.jitter
        generator = self.stream.generator(x_BD.device)
        return x_BD * torch.empty_like(x_BD).uniform_(low, high, generator=generator)
