"""The interface of encoders, and the encoders of a model. Axes: B batch, U some entities, N
entities and one more for the OOV id, D width of the embeddings.
"""

from __future__ import annotations

import copy
from functools import reduce
from operator import add
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from recsys_moe.model.request import Request

Entity = Literal["user", "item"]
BUILT_IN = ("users", "items", "item_bag", "user_bag", "context", "sequence", "moment")
"""Features of users and of items, bags of users and of items, context features, events, time."""
MATERIALIZED_AT_ONCE = 1024
"""Entities per part; bags are long."""


class Encoder(nn.Module):
    """Part of the vector of the user or of the item of each row: request -> (B, D).

    A new encoder derives from it and is listed in `recsys_moe.config.encoders`. It should start at
    0 and draw no random numbers, so that the rest of a model starts as it does without it.
    """

    is_static: ClassVar[bool] = True
    """Its part follows from the user (or item) alone: a finished model stores it in the table of
    ids and has no such encoder. Others go into the model folder and run; only users have them."""

    def __init__(self, entity: Entity) -> None:
        super().__init__()
        self.entity = entity

    def forward(self, request: Request) -> Tensor:
        """(B, D). A negative index ~i is the id i, hidden: see `shown`."""
        raise NotImplementedError

    def of_entities(self, index_U: Tensor) -> Tensor:
        """Of static encoders: (U,) indices -> (U, D), as `forward` in evaluation mode."""
        raise NotImplementedError

    def cold_start_state(self) -> dict[str, Tensor]:
        """The weights that cold-start users and items need, by name."""
        return {}

    def keep_pools(self, is_on: bool) -> None:
        """Begin and end an evaluation, in which weights stay: what is found twice may be kept."""

    def reseed(self, seed: int) -> None:
        """Give its random numbers, if it draws any, a stream of their own from `seed`."""


class Encoders(nn.Module):
    """The encoders of a model, by name. Of BUILT_IN: None without."""

    users: Any
    items: Any
    item_bag: Any
    user_bag: Any
    context: Any
    sequence: Any
    moment: Any

    def __init__(self, **parts: Encoder | None) -> None:
        """The order of `parts` is that in which they are added."""
        super().__init__()
        for name, part in {**dict.fromkeys(BUILT_IN), **parts}.items():
            setattr(self, name, part)

    def forward(self, entity: Entity, request: Request) -> Tensor | float:
        """What is added to the embedding of users or of items: (B, D), or 0."""
        parts = [part(request) for part in self.of_entity(entity)]
        return reduce(add, parts) if parts else 0.0

    @property
    def reads_events(self) -> bool:
        """Whether a part of it reads `Request.events`."""
        return self.sequence is not None

    def without(self, name: str) -> Encoders:
        """A copy without a part; it shares the others."""
        result = copy.copy(self)
        result._modules = {**self._modules, name: None}
        return result

    def of_entity(self, entity: Entity) -> list[Encoder]:
        """Those of users or of items."""
        parts: Any = self.children()
        return [part for part in parts if part.entity == entity]

    @torch.no_grad()
    def materialize(self, users_ND: Tensor, items_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of all users and items, static parts included, from the embeddings of their
        ids."""
        users_ND, items_ND = users_ND.clone(), items_ND.clone()
        tables: list[tuple[Entity, Tensor]] = [("user", users_ND), ("item", items_ND)]
        for entity, table_ND in tables:
            static = [part for part in self.of_entity(entity) if part.is_static]
            entities = torch.arange(len(table_ND), device=table_ND.device)
            for index_U in entities.split(MATERIALIZED_AT_ONCE):
                for part in static:
                    table_ND[index_U] += part.of_entities(index_U)
        return users_ND, items_ND

    def static_names(self) -> tuple[str, ...]:
        """Names of the parts that a finished model does not have."""
        parts: Any = self.named_children()
        return tuple(name for name, part in parts if part.is_static)

    def cold_start_state(self) -> dict[str, Tensor]:
        """The weights that cold-start users and items need, by part and name."""
        parts: dict[str, Any] = dict(self.named_children())
        return {
            f"{n}.{key}": value
            for n, one in parts.items()
            for key, value in one.cold_start_state().items()
        }

    def keep_pools(self, is_on: bool) -> None:
        """As of each part."""
        parts: Any = self.children()
        for part in parts:
            part.keep_pools(is_on)

    def reseed(self, seed: int) -> None:
        """Give each part a stream of its own from `seed`."""
        parts: Any = self.children()
        for part in parts:
            part.reseed(seed)


class Both(Encoders):
    """The sum of two models' encoders, such as those of cold-start users and dynamic ones."""

    def __init__(self, first: Encoders, second: Encoders) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, entity: Entity, request: Request) -> Tensor | float:
        return self.first(entity, request) + self.second(entity, request)

    @property
    def reads_events(self) -> bool:
        return bool(self.first.reads_events or self.second.reads_events)

    def of_entity(self, entity: Entity) -> list[Encoder]:
        return [*self.first.of_entity(entity), *self.second.of_entity(entity)]


def shown(index_B: Tensor) -> Tensor:
    """The indices, hidden ones (~i) included."""
    return torch.where(index_B < 0, ~index_B, index_B)


def with_oov_rows(table: Tensor, like: Tensor | None) -> Tensor:
    """With the last row as often again as `like` has more rows."""
    if like is None or like.shape == table.shape:
        return table
    more = len(like) - len(table)
    return torch.cat([table, table[-1:].expand(more, *table.shape[1:])])
