"""A control for studies: every user has k experts at random, which never change.

`model.router.name: research.routers.fixed:FixedRandomRouter`. Axes: B batch, E experts, U users and
the OOV user.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys_moe.routers import KConfig, Router, RouterShape, Routing
from recsys_moe.routers.settings import FixedConfig
from recsys_moe.seeds import stream_seed


class FixedRandomRouter(Router):
    """w_i = 1 / k on k distinct experts drawn per user and task before training. No parameters."""

    class Config(KConfig, FixedConfig):
        name: str = "research.routers.fixed:FixedRandomRouter"
        seed: int = 0
        """Seed of the table; the task is part of it."""

    per_user = ("selected_UE",)
    summary = "k random experts per user and task, fixed (a control)"
    selected_UE: Tensor

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        generator = torch.Generator().manual_seed(stream_seed(config.seed, "fixed", shape.task))
        order_UE = torch.rand(shape.num_users + 1, shape.num_experts, generator=generator).argsort()
        self.register_buffer("selected_UE", order_UE < config.k)

    @property
    def max_selected(self) -> int:
        return int(self.config.k)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        if user_B is None:
            raise ValueError("the fixed router needs the user of each row; pass layer(x, user)")
        selected_BE = self.selected_UE[user_B.long()]
        return Routing(selected_BE.float() / self.config.k, selected_BE)
