"""Hash routing (Roller et al. 2021, https://arxiv.org/abs/2106.04426): the user decides.

Axes: B batch, E experts, D input width, U users and the OOV user.
"""

from __future__ import annotations

import heapq

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Router, RouterShape, Routing
from recsys_moe.routers.precision import full_precision
from recsys_moe.routers.settings import FixedConfig
from recsys_moe.seeds import stream_seed


class HashRouter(Router):
    """Each user has one expert, drawn before training and never changed. No parameters.

    The table depends on `seed` (and on the training counts where balanced), so all tasks share it.
    It is a buffer, stored with the model, with one entry more for the OOV user. The paper hashes
    tokens; the COMET code, from which this is taken, hashes users without a seed. `balanced`
    assigns the most frequent users first, each to the expert with the fewest training rows so far
    (the paper's balanced assignment).
    """

    class Config(FixedConfig):
        name: str = "hash"
        seed: int = Field(default=0, ge=0)
        """Seed of the table of users."""
        balanced: bool = False
        """Spread the training rows evenly instead of at random; other users stay at random."""

    per_user = ("expert_U",)
    summary = "one random expert per user, fixed and stored (hash layer)"
    expert_U: Tensor

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        generator = torch.Generator().manual_seed(stream_seed(config.seed, "hash"))
        drawn_U = torch.randint(shape.num_experts, (shape.num_users + 1,), generator=generator)
        self.register_buffer("expert_U", drawn_U)

    @property
    def max_selected(self) -> int:
        return 1

    def setup(self, user_counts: Tensor) -> None:
        if not self.config.balanced:
            return
        counts = user_counts.cpu()
        seen = counts.nonzero().squeeze(-1)
        experts = assign_users(counts[seen].tolist(), self.shape.num_experts)
        self.expert_U[seen.to(self.expert_U.device)] = torch.tensor(experts).to(self.expert_U)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        """Route a batch by its users alone. `user_B`: (B,) integers in 0..num_users."""
        if user_B is None:
            raise ValueError("the hash router needs the user of each row; pass layer(x_BD, user_B)")
        experts_E = torch.arange(self.shape.num_experts, device=x_BD.device)
        selected_BE = self.expert_U[user_B.long()][:, None] == experts_E
        return Routing(selected_BE.to(full_precision(x_BD).dtype), selected_BE)


def assign_users(counts: list[int], num_experts: int) -> list[int]:
    """Expert of each user: by decreasing count to the least loaded expert, ties to lower indices.

    O(U log E). Largest loads differ by no more than the largest count.
    """
    loads = [(0, expert) for expert in range(num_experts)]
    assigned = [0] * len(counts)
    for user in sorted(range(len(counts)), key=lambda user: -counts[user]):  # stable
        load, expert = loads[0]
        assigned[user] = expert
        heapq.heapreplace(loads, (load + counts[user], expert))
    return assigned
