"""Exact logits of a whole catalogue: first layers split into a user half and an item half.

An expert's first layer is linear in x = [u; i], so x W_e + b_e = (u V_e + b_e) + i U_e with W_e =
[V_e; U_e]. The item half i U_e does not depend on the user: it is computed once and kept.
Per user there remain the routers, one addition and ReLU per chosen pair, and the towers. (Gates
could be split too: that would save about a seventh of the rest, for routers with a linear gate.)
Axes: U users, N items, B pairs, P chosen (pair, expert), E experts, D embedding, H expert width.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from recsys_moe.model.draws import Draws
from recsys_moe.model.moe_network import MoENetwork
from recsys_moe.model.pair_plan import plan_pairs, starts
from recsys_moe.model.precomputed import Precomputed
from recsys_moe.model.ranker import ROWS_PER_CHUNK, Ranker
from recsys_moe.model.request import Request, of_users
from recsys_moe.routers import Routing
from recsys_moe.routers.joint import route_task

MAX_CACHE_MB = 512.0
"""Memory for precomputed item halves; others are computed for each chunk."""


Route = Callable[[Tensor, Tensor], Routing]
"""Inputs (B, D) and users (B,) -> the decision for a task."""


class MoERanker(Ranker):
    """As `Ranker`, equal to the model's own logits within rounding.

    Only the cache of item halves changes, under a lock, when a ranking first visits an expert.
    """

    model: MoENetwork

    def __init__(
        self,
        model: MoENetwork,
        draws: Draws,
        whole_rows: int,
        *,
        max_cache_mb: float = MAX_CACHE_MB,
    ) -> None:
        super().__init__(model, draws, whole_rows)
        self._of_pairs = Precomputed(model)
        kernel_EDH = model.moe.experts.kernel_EDH.detach()
        width = model.user_embedding.embedding_dim
        self._user_EDH, self._item_EDH = kernel_EDH[:, :width], kernel_EDH[:, width:]
        self._precomputed: dict[int, Tensor] = {}
        table_bytes = max(1, model.num_items) * kernel_EDH.shape[-1] * kernel_EDH.element_size()
        self._most_precomputed = int(max_cache_mb * 2**20 / table_bytes)
        self._growing = threading.Lock()

    def logits(self, request: Request) -> Tensor:
        return self._of_pairs.logits(request) if self._of_pairs.fits else super().logits(request)

    @torch.inference_mode()
    def pairs(self, users: Request, place_B: Tensor, item_B: Tensor, column: int) -> Tensor:
        number, output = self.model.shape.places[column]
        routers, tower = self.model.routers, self.model.towers[number]
        router = partial(route_task, routers, number)
        known = self._encoded(users)
        alone = not (routers[number].batch_dependent or self.draws.by_task[number])
        if not alone:
            routed = self._routed_among_all(known, place_B, item_B, router)
        user_EUH = self._user_precomputed(known.vector_UD)
        logits_B = torch.empty(len(item_B))
        for start in range(0, len(item_B), ROWS_PER_CHUNK):
            rows = slice(start, start + ROWS_PER_CHUNK)
            place, item = place_B[rows], item_B[rows]
            routing = self._route(router, known, place, item) if alone else _rows(routed, rows)
            mixed_BH = self._mixed(user_EUH, place, item, routing)
            logits_B[rows] = tower(mixed_BH)[:, output]
            if self.model.bilinear is not None:
                logits_B[rows] += self.model.bilinear.of_task(
                    self._inputs(known.vector_UD, place, item), column
                )
            logits_B[rows] += self._trend(users, known.vector_UD, place, item, column)
        if self.model.biases is None:
            return logits_B
        return self.model.biases.of_task(logits_B, known.index_U[place_B], item_B, column)

    def warm_up(self) -> None:
        """Compute the item halves that up to 17 evenly spaced users need."""
        unseen = self.model.user_embedding.num_embeddings - 1
        # float64: the float32 next to 2**24 + 3 is one more.
        user_U = torch.linspace(0, unseen, min(17, unseen + 1), dtype=torch.float64).long()
        for column in range(len(self.model.shape.places)):
            self.grid(of_users(user_U), torch.arange(self.model.num_items), column)

    def _routed_among_all(
        self, users: _Users, place_B: Tensor, item_B: Tensor, router: Route
    ) -> Routing:
        """Routing of the pairs, each user's whole catalogue routed at once."""
        none_BE = torch.empty(0, len(self._user_EDH))
        parts = [Routing(none_BE, none_BE.bool())]
        for place in range(len(users.index_U)):
            with self.draws.seeded():
                routings = [
                    self._route(router, users.only(place), item, item)
                    for item in torch.arange(self.model.num_items).split(self.whole_rows)
                ]
            parts.append(_rows(_joined(routings), item_B[place_B == place]))
        return _joined(parts)

    def _route(self, router: Route, users: _Users, place_B: Tensor, item_B: Tensor) -> Routing:
        x_BD = self._inputs(users.vector_UD, place_B, item_B)
        user_B = _of_users(users.index_U, place_B).expand(len(item_B))
        return router(x_BD, user_B)

    def _inputs(self, vector_UD: Tensor, place_B: Tensor, item_B: Tensor) -> Tensor:
        """What the router reads of the pairs (B, D)."""
        model, rows = self.model, len(item_B)
        width = model.user_embedding.embedding_dim
        x_BD = torch.empty(rows, 2 * width)
        x_BD[:, :width] = _of_users(vector_UD, place_B)
        first = int(item_B[0]) if rows else 0
        if torch.equal(item_B, torch.arange(first, first + rows)):  # nothing to gather
            x_BD[:, width:] = model.item_embedding.weight[first : first + rows]
        else:
            x_BD[:, width:] = model.item_embedding.weight.index_select(0, item_B)
        return x_BD

    def _encoded(self, users: Request) -> _Users:
        return _Users(self.model.encode_users(users), self.model.known(users).user)

    def _user_precomputed(self, vector_UD: Tensor) -> Tensor:
        """(E, U, H), biases included."""
        bias_EH = self.model.moe.experts.bias_EH
        user_EUD = vector_UD.expand(len(bias_EH), -1, -1)
        return torch.baddbmm(bias_EH[:, None], user_EUD, self._user_EDH)

    def _mixed(self, user_EUH: Tensor, place_B: Tensor, item_B: Tensor, routing: Routing) -> Tensor:
        """The mixture (B, H): sum_e w_e relu(user half + item half) over the chosen experts."""
        plan = plan_pairs(routing.selected_BE[:, None])
        row_P = plan.row_P.index_select(0, plan.real_R)  # none that pads
        item_P = item_B.index_select(0, row_P)
        place_P = place_B.index_select(0, row_P) if user_EUH.shape[1] > 1 else place_B
        hidden_PH = torch.empty(len(item_P), user_EUH.shape[-1])
        start = 0
        for expert, size in enumerate(routing.selected_BE.sum(0).tolist()):
            if size:
                part, start = slice(start, start + size), start + size
                self._item_half(expert, item_P[part], hidden_PH[part])
                hidden_PH[part] += _of_users(user_EUH[expert], place_P[part])
        place_R = torch.empty_like(plan.row_P)  # of a pair among those that do not pad
        place_R[plan.real_R] = torch.arange(len(row_P))
        weight_N = routing.weights_BE.flatten().index_select(0, plan.flat_N)
        place_N, start_B = place_R.index_select(0, plan.pair_N), starts(plan.slot_N, len(item_B))
        bags = (place_N, start_B, False, 0, False, weight_N)
        mixed_BH = torch.embedding_bag(hidden_PH.relu_(), *bags)[0]
        means = self.model.moe.output_means
        return mixed_BH if means is None else means(mixed_BH[:, None], [routing])[:, 0]

    def _item_half(self, expert: int, item_P: Tensor, out_PH: Tensor) -> None:
        """Write (P, H): from the cache or, where it has no room for the expert, computed."""
        table_NH = self._precomputed.get(expert)
        if table_NH is None:
            table_NH = self._remembered(expert)
        if table_NH is None:
            torch.mm(self.model.item_embedding(item_P), self._item_EDH[expert], out=out_PH)
        else:
            torch.index_select(table_NH, 0, item_P, out=out_PH)

    def _remembered(self, expert: int) -> Tensor | None:
        with self._growing:
            if expert not in self._precomputed and len(self._precomputed) < self._most_precomputed:
                item_ND = self.model.item_embedding.weight[: self.model.num_items]
                self._precomputed[expert] = item_ND @ self._item_EDH[expert]
            return self._precomputed.get(expert)


class _Users(NamedTuple):
    """Users of a ranking."""

    vector_UD: Tensor
    index_U: Tensor
    """Rows of the tables: that of the OOV id for cold-start users."""

    def only(self, place: int) -> _Users:
        """One of them."""
        return _Users(*(field[place : place + 1] for field in self))


def _of_users(values_U: Tensor, place_P: Tensor) -> Tensor:
    """What belongs to the users of the pairs; a single user's is left to broadcast."""
    return values_U if len(values_U) == 1 else values_U.index_select(0, place_P)


def _rows(routing: Routing, rows: slice | Tensor) -> Routing:
    """What the mixture needs of some rows."""
    absent_BE = routing.default_weights_BE
    return Routing(
        routing.weights_BE[rows],
        routing.selected_BE[rows],
        default_weights_BE=None if absent_BE is None else absent_BE[rows],
    )


def _joined(parts: Sequence[Routing]) -> Routing:
    """What the mixture needs, one after the other."""
    absent = [r.default_weights_BE for r in parts if r.default_weights_BE is not None]
    return Routing(
        torch.cat([routing.weights_BE for routing in parts]),
        torch.cat([routing.selected_BE for routing in parts]),
        default_weights_BE=torch.cat(absent) if absent else None,
    )
