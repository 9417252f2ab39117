"""TwoTower: a vector per user and per item for each logit, their dot product.

Covington, Adams and Sargin 2016; Yi et al. 2019 (https://doi.org/10.1145/3298689.3346996). Axes:
B batch, U users, N items, T tasks (or classes of one), D width of an embedding, R width of a task's
vectors.
"""

from __future__ import annotations

import threading
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from recsys_moe.model.draws import Draws
from recsys_moe.model.output import Output
from recsys_moe.model.ranker import ROWS_PER_CHUNK, Ranker, Scorer
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.request import Request, of_items
from recsys_moe.model.settings import ModelConfig
from recsys_moe.model.shape import ModelShape
from recsys_moe.routers.precision import full_precision


class TwoTower(Recommender):
    """logit_t = <P_t(u), Q_t(v)> of user vector u and item vector v, plus user and item biases."""

    class Config(ModelConfig):
        name: str = "two_tower"
        rank: int = Field(default=64, ge=1)
        """Width of the vectors of a task, whose dot product is the logit."""
        tower_dims: tuple[Annotated[int, Field(ge=1)], ...] = ()
        """Widths of the Dense + ReLU layers of each tower before its last layer, which is
        linear."""

    def __init__(self, config: Config, shape: ModelShape) -> None:
        super().__init__(config, shape)
        sizes = config.embedding_dim, *config.tower_dims, shape.num_logits * config.rank
        self.user_tower, self.item_tower = _tower(sizes), _tower(sizes)

    def score(self, user_BD: Tensor, item_BD: Tensor, request: Request) -> Output:
        users_BTR, items_BTR = self.users_of_tasks(user_BD), self.items_of_tasks(item_BD)
        return Output((users_BTR * items_BTR).sum(-1))

    def product(self, user_BD: Tensor, item_ND: Tensor, column: int) -> tuple[Tensor, Tensor]:
        return self.users_of_tasks(user_BD)[:, column], self.items_of_tasks(item_ND)[:, column]

    def users_of_tasks(self, user_BD: Tensor) -> Tensor:
        """(B, D) -> (B, T, R)"""
        return full_precision(self.user_tower(user_BD)).unflatten(-1, (self.shape.num_logits, -1))

    def items_of_tasks(self, item_BD: Tensor) -> Tensor:
        """(B, D) -> (B, T, R)"""
        return full_precision(self.item_tower(item_BD)).unflatten(-1, (self.shape.num_logits, -1))

    def ranker(self, draws: Draws, whole_rows: int) -> Ranker:
        return TwoTowerRanker(self, draws, whole_rows)


class TwoTowerRanker(Ranker):
    """As `Ranker`, by one matmul: the vectors of all items are computed once and kept."""

    model: TwoTower

    def __init__(self, model: Scorer, draws: Draws, whole_rows: int) -> None:
        super().__init__(model, draws, whole_rows)
        self._kept: dict[str, Tensor] = {}
        self._growing = threading.Lock()

    @torch.inference_mode()
    def grid(self, users: Request, item_N: Tensor, column: int) -> Tensor:
        model, known = self.model, self.model.known(users)
        user_UD = model.encode_users(users)
        user_UR = model.users_of_tasks(user_UD)[:, column]
        logits_UN = user_UR @ self._items()[item_N, column].t()
        if model.trend is not None and users.moment is not None:
            at_once = max(1, ROWS_PER_CHUNK // max(1, len(item_N)))
            for place_U in torch.arange(users.rows).split(at_once):
                place_B = place_U.repeat_interleave(len(item_N))
                item_B = item_N.repeat(len(place_U))
                added_B = self._trend(users, user_UD, place_B, item_B, column)
                logits_UN[place_U] += added_B.view(len(place_U), len(item_N))
        if model.biases is None:
            return logits_UN
        return model.biases.of_task(logits_UN, known.user[:, None], item_N, column)

    def warm_up(self) -> None:
        """Compute the vectors of all items."""
        self._items()

    @torch.inference_mode()
    def _items(self) -> Tensor:
        """(N, T, R)"""
        with self._growing:
            if "items" not in self._kept:
                item_ND = self.model.encode_items(of_items(torch.arange(self.model.num_items)))
                self._kept["items"] = self.model.items_of_tasks(item_ND)
            return self._kept["items"]


def _tower(sizes: tuple[int, ...]) -> nn.Sequential:
    """Dense + ReLU, the last layer linear; Glorot-uniform kernels, biases zero."""
    layers: list[Any] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layer = nn.Linear(before, after)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
