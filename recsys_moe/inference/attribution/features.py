"""Feature attribution: features, history items and ids, each left out in turn.

Exact about what it claims: a contribution is the task's logit minus the logit of the same pair with
that one part left out of the vector of its user or item, all else unchanged (also the factor
|N(u)|^-1/2 of a history, and that of several categories). Models are not linear, so contributions
need not sum to anything. Axes: V variants of a pair, P items of a history, T tasks, D width of the
embeddings, W that of histories.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.artifact.bags import ENCODER, are_missing, rows_of
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.data.entries import rating_of_level
from recsys_moe.errors import ConfigError
from recsys_moe.inference.attribution.attribution import Attribution, largest
from recsys_moe.inference.cold_start.encode import ColdStart
from recsys_moe.inference.cold_start.model import ColdStartVectors, Parts, with_cold_users
from recsys_moe.inference.cold_start.whom import ENTITIES, Entity
from recsys_moe.inference.context import context_reader
from recsys_moe.kinds import first_columns, kind_of
from recsys_moe.model.encoders.base import Encoders
from recsys_moe.model.request import Request

MOST_LEFT_OUT = 128
"""Items of a history that are left out in turn; of a longer one those with the largest first-order
change of any task's logit."""


class LeftOut(Encoders):
    """The encoder of a batch, minus the part that each row leaves out."""

    def __init__(self, cold: ColdStartVectors | None, user_VD: Tensor, item_VD: Tensor) -> None:
        super().__init__()
        self.cold, self.user_VD, self.item_VD = cold, user_VD, item_VD

    def forward(self, entity: Entity, request: Request) -> Tensor:
        left_VD = self.user_VD if entity == "user" else self.item_VD
        return -left_VD if self.cold is None else self.cold(entity, request) - left_VD


class _Part(NamedTuple):
    """What can be left out of a pair."""

    attribution: Attribution
    """Without its contribution."""
    added_D: Tensor
    """What it adds to the vector."""
    is_id: bool = False
    """Replaces the id with the OOV id as well."""

    def contributing(self, contribution: float) -> Attribution:
        return replace(self.attribution, contribution=contribution)


class Attributor:
    """Of the scores of one model."""

    def __init__(self, artifact: Artifact, cold_users: ColdStart, independent: bool) -> None:
        """`independent`: is the routing of a row a function of that row alone?"""
        self._artifact, self._cold_start, self._independent = artifact, cold_users, independent
        self._context = context_reader(artifact)
        self._tables = artifact.encoders
        self._columns = first_columns([kind_of(task) for task in artifact.schema.tasks])

    @property
    def none_because(self) -> str | None:
        """Why this model has no attributions; None if it has them."""
        if not self._tables and not self._context.names:
            return "the model uses ids only; train with model.features or model.item_bag"
        if not self._independent:
            return "the router assigns rows jointly, so that a score depends on other rows"
        if are_missing(self._artifact.history, self._tables):
            return "the model folder does not contain the histories; train again"
        return None

    def of_pair(
        self, pair: Request, cold: ColdStartVectors | None, most: int
    ) -> list[list[Attribution]]:
        """Per task the largest first: at most `most` features and `most` items of the history, and
        the whole histories and both ids where they are known.

        `pair`: one row. Raises ConfigError with `none_because`.
        """
        if self.none_because:
            raise ConfigError(f"attributions are not available: {self.none_because}")
        indices = dict(zip(ENTITIES, (int(pair.user), int(pair.item)), strict=True))
        made_of = {entity: self._made_of(entity, index, cold) for entity, index in indices.items()}
        pool_PD = self._pool("user", made_of["user"].history)
        shown_P = torch.arange(len(pool_PD))
        if len(pool_PD) > MOST_LEFT_OUT:
            shown_P = self._largest(pool_PD, pair, cold)
        parts = [
            part
            for entity, index in indices.items()
            for part in self._parts(entity, index, made_of[entity])
        ]
        parts += self._of_context(pair)
        parts += self._of_history(made_of["user"].history, pool_PD, shown_P)
        change_TV = self._changes(pair, parts, cold).t().tolist()
        return [largest(map(_Part.contributing, parts, changes), most) for changes in change_TV]

    def _made_of(self, entity: Entity, index: int, cold: ColdStartVectors | None) -> Parts:
        """The entries of the vector of one user or item, without its id."""
        artifact, nothing = self._artifact, torch.empty(0, dtype=torch.long)
        if index < 0 and cold is not None:
            return cold.parts[entity][~index]
        if not self._is_known(entity, index):
            return Parts([], nothing)
        table = artifact.users if entity == "user" else artifact.items
        features = self._cold_start.readers[entity].known(table.slice(index, 1))
        return Parts(features, rows_of(artifact.history, entity, index))

    def _pool(self, entity: Entity, row_P: Tensor) -> Tensor:
        """What each entry of a history adds to the vector. (P, D)"""
        if not len(row_P):
            return torch.zeros(0, self._artifact.config.model.embedding_dim)
        table_RW, kernel_DW = (
            self._tables[f"{ENCODER[entity]}.{name}"] for name in ("table_RW", "kernel_DW")
        )
        return F.linear(table_RW[row_P] * len(row_P) ** -0.5, kernel_DW)

    def _is_known(self, entity: Entity, index: int) -> bool:
        """Has training a row of its own for it, which may be left out?"""
        artifact = self._artifact
        return (
            0 <= index < (artifact.schema.user.size if entity == "user" else artifact.known_items)
        )

    def _largest(self, pool_PD: Tensor, pair: Request, cold: ColdStartVectors | None) -> Tensor:
        """Places of the items whose first-order change of any task is largest, ascending."""
        left_VD = torch.zeros(1, pool_PD.shape[1], requires_grad=True)
        left_out = LeftOut(cold, left_VD, torch.zeros_like(left_VD))
        model = with_cold_users(self._artifact.model, left_out)
        with torch.enable_grad():
            logits_T = model(pair).logits_BT[0, self._columns]
            slopes = [torch.autograd.grad(one, left_VD, retain_graph=True)[0] for one in logits_T]
        change_PT = pool_PD @ torch.cat(slopes).t()
        share = MOST_LEFT_OUT // len(slopes)
        order_PT = change_PT.abs().argsort(dim=0, descending=True, stable=True)
        return order_PT[:share].unique()

    def _parts(self, entity: Entity, index: int, made_of: Parts) -> Iterator[_Part]:
        """Features, the whole history, and the id."""
        total_D = self._pool(entity, made_of.history).sum(0)
        if len(made_of.history):
            yield _Part(Attribution("history", entity), total_D)
        for row, weight in made_of.features:
            name, value = self._cold_start.readers[entity].named(row, weight)
            added_D = weight * self._tables[f"{entity}s.table_RD"][row]
            total_D = total_D + added_D
            yield _Part(Attribution("feature", entity, name=name, value=value), added_D)
        if self._is_known(entity, index):
            yield _Part(Attribution("id", entity), -total_D, is_id=True)

    def _of_context(self, pair: Request) -> Iterator[_Part]:
        """Context features with a value."""
        nothing_D = torch.zeros(self._artifact.config.model.embedding_dim)
        values = [] if pair.context is None else pair.context[0].tolist()
        for name, value in zip(self._context.names, values, strict=False):
            if not math.isnan(value):
                shown = self._context.raw(name, value)
                yield _Part(Attribution("feature", "context", name=name, value=shown), nothing_D)

    def _of_history(self, row_P: Tensor, pool_PD: Tensor, shown_P: Tensor) -> Iterator[_Part]:
        """The items of a user's."""
        if not len(row_P):
            return
        known, table = self._artifact.known_items, self._artifact.items
        rows = table.take(pa.array((row_P[shown_P] % known).numpy()))
        ids = rows["item"].to_pylist()
        titles = [None] * len(ids)
        if "title" in rows.column_names:
            titles = rows["title"].cast(pa.string()).to_pylist()
        levels, schema = self._cold_start.levels, self._artifact.schema
        ratings = [
            rating_of_level(level, levels, schema) for level in (row_P[shown_P] // known).tolist()
        ]
        for item, title, rating, added_D in zip(
            ids, titles, ratings, pool_PD[shown_P], strict=True
        ):
            reason = Attribution("item", "user", value=item, title=title, rating=rating)
            yield _Part(reason, added_D)

    @torch.inference_mode()
    def _changes(
        self, pair: Request, parts: Sequence[_Part], cold: ColdStartVectors | None
    ) -> Tensor:
        """Logits of the pair minus those without each part. (V, T)"""
        entities, unseen = [], (self._artifact.schema.user.size, self._artifact.schema.item.size)
        indices = int(pair.user), int(pair.item)
        for entity, index, hidden in zip(ENTITIES, indices, unseen, strict=True):
            mine = [part if part.attribution.entity == entity else None for part in parts]
            nothing_D = torch.zeros(self._artifact.config.model.embedding_dim)
            left_VD = [nothing_D, *(nothing_D if one is None else one.added_D for one in mine)]
            index_V = [index, *(hidden if one and one.is_id else index for one in mine)]
            entities.append((torch.tensor(index_V), torch.stack(left_VD)))
        (user_V, user_VD), (item_V, item_VD) = entities
        model = with_cold_users(self._artifact.model, LeftOut(cold, user_VD, item_VD))
        context_VC = self._without(pair.context, [part.attribution for part in parts])
        variants = pair.take(torch.zeros_like(user_V))
        variants = variants._replace(user=user_V, item=item_V, context=context_VC)
        logits_VT = model(variants).logits_BT[:, self._columns]
        return logits_VT[:1] - logits_VT[1:]

    def _without(self, context_1C: Tensor | None, left: Sequence[Attribution]) -> Tensor | None:
        """The context, and the same without each part that is one of its features. (1 + V, C)"""
        if context_1C is None:
            return None
        context_VC = context_1C.repeat(1 + len(left), 1)
        for row, one in enumerate(left, start=1):
            if one.entity == "context":
                context_VC[row, self._context.names.index(str(one.name))] = math.nan
        return context_VC
