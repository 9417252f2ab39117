"""MoENetwork: embeddings -> mixture of experts -> one tower and head per task -> logits.

A plain nn.Module on plain tensors. Axes: B batch, T tasks, D width of a vector, H expert width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from recsys_moe.model.bilinear import DiagonalTerm, ProjectedTerm
from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import MoE
from recsys_moe.model.moe_settings import MoEConfig
from recsys_moe.model.output import Output
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.request import Request
from recsys_moe.model.shape import ModelShape
from recsys_moe.routers import Router, RouterShape, Routing, find_router
from recsys_moe.routers.base import AllSum
from recsys_moe.routers.joint import route
from recsys_moe.routers.precision import full_precision


class MoENetwork(Recommender):
    """What `MultiTaskMoE` computes and how it is trained.

    Initialised like the experiments of the MOESART paper (Keras' defaults): embeddings
    U(-0.05, 0.05), kernels Glorot-uniform, biases zero. PyTorch's N(0, 1) embeddings would start
    the routers at about 35 times larger logits.
    """

    Config = MoEConfig

    def __init__(self, config: MoEConfig, shape: ModelShape) -> None:
        super().__init__(config, shape)
        width, num_tasks = 2 * config.embedding_dim, shape.num_tasks
        sizes, kind = (width, config.num_experts, shape.num_users), find_router(config.router.name)
        shapes = [RouterShape(*sizes, task, num_tasks) for task in range(num_tasks)]
        routers = [kind(config.router, shape) for shape in shapes]
        experts = Experts(config.num_experts, width, config.expert_dim, config.dropout)
        self.moe = MoE(experts, routers, config.dispatch)
        self.towers = nn.ModuleList(
            _tower(config.expert_dim, config.tower_dims, size) for size in shape.sizes
        )
        term = DiagonalTerm if config.bilinear_diagonal else ProjectedTerm
        rank = config.bilinear_rank
        self.bilinear = term(shape.num_logits, config.embedding_dim, rank) if rank else None

    def score(self, user_BD: Tensor, item_BD: Tensor, request: Request) -> Output:
        x_BD = torch.cat([user_BD, item_BD], dim=-1)
        mixed_BTH, routings = self.moe(x_BD, request.user)
        return Output(self.logits(mixed_BTH, x_BD), {"routings": routings})

    def logits(self, mixed_BTH: Tensor, x_BD: Tensor) -> Tensor:
        """Logits (B, T), without biases, from the mixtures and the vectors of `encode`."""
        # unbind: its gradient is one stack, that of indexing a zero-filled copy per task.
        pairs = zip(self.towers, mixed_BTH.unbind(1), strict=True)
        logits_BT = full_precision(
            torch.cat([tower(mixed_BH) for tower, mixed_BH in pairs], dim=-1)
        )
        return logits_BT if self.bilinear is None else logits_BT + self.bilinear(x_BD)

    def product(
        self, user_BD: Tensor, item_ND: Tensor, column: int
    ) -> tuple[Tensor, Tensor] | None:
        return None if self.bilinear is None else self.bilinear.factors(user_BD, item_ND, column)

    @torch.no_grad()
    def start_product(self, column: int) -> None:
        if isinstance(self.bilinear, DiagonalTerm):
            kept_R = self.bilinear.scale_TR[column].clone()
            self.bilinear.scale_TR.zero_()
            self.bilinear.scale_TR[column] = kept_R

    def routings(self, request: Request) -> list[Routing]:
        x_BD, user_B = self.encode(request), self.known(request).user
        return route(self.routers, x_BD, user_B)

    def auxiliary_loss(self, output: Output, weights: Mapping[str, float]) -> Tensor:
        """A sum over the routers of the tasks, without task weights."""
        return self.moe.auxiliary_loss(output.routings, **weights)

    @property
    def routers(self) -> list[Router]:
        return list(self.moe.routers)  # type: ignore[arg-type]

    @property
    def experts(self) -> Experts:
        return self.moe.experts

    @property
    def last_shared(self) -> list[nn.Parameter]:
        """Those of the experts."""
        return list(self.moe.experts.parameters())

    def reseed(self, seed: int) -> None:
        """Dropout, each task's router and the encoders."""
        self.moe.reseed(seed)
        super().reseed(seed)

    def set_epoch(self, epochs: float) -> None:
        self.moe.set_epoch(epochs)

    def on_step_end(self, all_sum: AllSum) -> None:
        self.moe.on_step_end(all_sum)


def _tower(input_dim: int, dims: Sequence[int], outputs: int) -> nn.Sequential:
    """Dense + ReLU per width in `dims`, then the head: the logits."""
    layers: list[nn.Module] = []
    for width in dims:
        layers += [_linear(input_dim, width), nn.ReLU()]
        input_dim = width
    return nn.Sequential(*layers, _linear(input_dim, outputs))


def _linear(input_dim: int, output_dim: int) -> nn.Linear:
    layer = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
