"""MultiTaskMoE: embeddings -> mixture of experts -> one tower and head per task -> logits.

A plain nn.Module on plain tensors. Axes: B batch, T tasks, D = user + item embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recsys_moe.model.biases import Biases
from recsys_moe.model.bilinear import DiagonalTerm, ProjectedTerm
from recsys_moe.model.encoders import Encoders
from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import Dispatch, MoE
from recsys_moe.model.request import Request
from recsys_moe.routers import Router, RouterConfig, RouterShape, Routing, find_router
from recsys_moe.routers.base import full_precision

ENCODERS = "encoders."


class Output(NamedTuple):
    """Logits before the link, one column per task, and the routing of each task."""

    logits_BT: Tensor
    routings: list[Routing]


class MultiTaskMoE(nn.Module):
    """Logits of every task for (user, item) pairs.

    Each table has one row more than there are ids: the last one is the out-of-vocabulary (OOV)
    embedding, for unknown ids. Initialised like the experiments of the MOESART paper (Keras'
    defaults): embeddings U(-0.05, 0.05), kernels Glorot-uniform, biases zero. PyTorch's N(0, 1)
    embeddings would start the routers at about 35 times larger logits.
    """

    def __init__(
        self,
        num_users: int,
        num_items: int,
        num_tasks: int,
        *,
        router: RouterConfig,
        embedding_dim: int = 128,
        num_experts: int = 16,
        expert_dim: int = 256,
        tower_dims: Sequence[int] = (256,),
        dropout: float = 0.5,
        bilinear_rank: int = 0,
        bilinear_diagonal: bool = False,
        dispatch: Dispatch = "auto",
        biases: Biases | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        """`biases`: user and item biases; `encoders`: features and bags.

        `bilinear_rank`: rank of the bilinear term, 0 for none: a ProjectedTerm or, with
        `bilinear_diagonal`, a DiagonalTerm.
        """
        super().__init__()
        self.user_embedding = _embedding(num_users + 1, embedding_dim)
        self.item_embedding = _embedding(num_items + 1, embedding_dim)
        sizes = 2 * embedding_dim, num_experts, num_users
        shapes = [RouterShape(*sizes, task, num_tasks) for task in range(num_tasks)]
        routers = [find_router(router.name)(router, shape) for shape in shapes]
        experts = Experts(num_experts, 2 * embedding_dim, expert_dim, dropout)
        self.moe = MoE(experts, routers, dispatch)
        self.towers = nn.ModuleList(_tower(expert_dim, tower_dims) for _ in range(num_tasks))
        term = DiagonalTerm if bilinear_diagonal else ProjectedTerm
        self.bilinear = term(num_tasks, embedding_dim, bilinear_rank) if bilinear_rank else None
        self.biases, self.encoders = biases, encoders

    def forward(self, request: Request) -> Output:
        """The logits and routings of each row of `request`."""
        x_BD = self.encode(request)
        user_B, item_B = self.ids(request)
        mixed_BTH, routings = self.moe(x_BD, user_B)
        return Output(self.logits(mixed_BTH, x_BD, user_B, item_B), routings)

    def logits(self, mixed_BTH: Tensor, x_BD: Tensor, user_B: Tensor, item_B: Tensor) -> Tensor:
        """Logits (B, T) from the mixtures, the vectors of `encode`, and the indices of `ids`."""
        # unbind: its gradient is one stack, that of indexing a zero-filled copy per task.
        pairs = zip(self.towers, mixed_BTH.unbind(1), strict=True)
        logits_BT = full_precision(
            torch.cat([tower(mixed_BH) for tower, mixed_BH in pairs], dim=-1)
        )
        if self.bilinear is not None:
            logits_BT = logits_BT + self.bilinear(x_BD)
        if self.biases is not None:
            logits_BT = self.biases(logits_BT, user_B, item_B)
        return logits_BT

    def encode(self, request: Request) -> Tensor:
        """Input of routers and experts: user vector and item vector, concatenated. (B, D)"""
        shown_user_B, shown_item_B = self.ids(request)
        user_BD, item_BD = self.user_embedding(shown_user_B), self.item_embedding(shown_item_B)
        if self.encoders is not None:
            more_of_user, more_of_item = self.encoders(request.user, request.item)
            user_BD, item_BD = user_BD + more_of_user, item_BD + more_of_item
        return torch.cat([user_BD, item_BD], dim=-1)

    def ids(self, request: Request) -> tuple[Tensor, Tensor]:
        """Rows of the embedding tables: the OOV id for a hidden id (~i, with encoders only)."""
        if self.encoders is None:
            return request.user, request.item
        oov = self.user_embedding.num_embeddings - 1, self.item_embedding.num_embeddings - 1
        pairs = zip((request.user, request.item), oov, strict=True)
        user_B, item_B = (torch.where(i_B < 0, one, i_B) for i_B, one in pairs)
        return user_B, item_B

    def materialize(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The state of a model without encoders that scores the same, and the cold-start state.

        The tables of the first hold the vectors of all users and items.
        """
        state = self.state_dict()
        if self.encoders is None:
            return state, {}
        names = "user_embedding.weight", "item_embedding.weight"
        vectors = self.encoders.materialize(*(state[name] for name in names))
        plain = {name: value for name, value in state.items() if not name.startswith(ENCODERS)}
        return {**plain, **dict(zip(names, vectors, strict=True))}, self.encoders.cold_start_state()

    @property
    def tables(self) -> list[nn.Embedding]:
        """The embedding tables of ids: users, items."""
        return [self.user_embedding, self.item_embedding]

    @property
    def last_shared(self) -> list[nn.Parameter]:
        """The last parameters that all tasks share: those of the experts."""
        return list(self.moe.experts.parameters())

    @property
    def routers(self) -> list[Router]:
        """One router per task, in the order of the tasks."""
        return list(self.moe.routers)  # type: ignore[arg-type]

    def reseed(self, seed: int) -> None:
        """Give dropout, each task's router and the encoders a stream of their own from `seed`."""
        self.moe.reseed(seed)
        if self.encoders is not None:
            self.encoders.reseed(seed)


def _embedding(rows: int, dim: int) -> nn.Embedding:
    table = nn.Embedding(rows, dim)
    nn.init.uniform_(table.weight, -0.05, 0.05)
    return table


def _tower(input_dim: int, dims: Sequence[int]) -> nn.Sequential:
    """Dense + ReLU per width in `dims`, then the head: one logit."""
    layers: list[nn.Module] = []
    for width in dims:
        layers += [_linear(input_dim, width), nn.ReLU()]
        input_dim = width
    return nn.Sequential(*layers, _linear(input_dim, 1))


def _linear(input_dim: int, output_dim: int) -> nn.Linear:
    layer = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
