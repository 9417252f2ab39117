"""The interface of models: a vector per user and per item, and a score of two vectors.

A request's user vector may depend on anything but the item: that alone keeps rankings of the whole
catalogue exact. Axes: B rows, U users, N items, T tasks, D width of a vector.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from recsys_moe.model.biases import Biases
from recsys_moe.model.draws import Draws
from recsys_moe.model.encoders.base import Encoders, Entity, with_oov_rows
from recsys_moe.model.expert_shares import Explanation
from recsys_moe.model.experts import Experts
from recsys_moe.model.output import Output, checked
from recsys_moe.model.ranker import Ranker
from recsys_moe.model.request import Moment, Request, of_items
from recsys_moe.model.settings import ModelConfig
from recsys_moe.model.shape import ModelShape
from recsys_moe.model.trend import Trend
from recsys_moe.routers import Router, Routing
from recsys_moe.routers.base import AllSum

R = TypeVar("R", bound="Recommender")
ENCODERS = "encoders."


class Recommender(nn.Module, ABC):
    """Logits of every task for (user, item) pairs.

    A new model derives from it and defines `score`; the rest works for any model and may be
    overridden. Each table of ids has one row more than there are ids: the last one is the OOV
    embedding, for unknown ids. Embeddings start as U(-0.05, 0.05), as in Keras.
    """

    Config: ClassVar[type[ModelConfig]]
    """Its settings: the section `model` of a configuration."""
    biases: Biases | None
    """User and item biases, or None; set after `__init__`, as are the encoders."""
    encoders: Encoders | None
    """Features, bags and others, or None."""
    trend: Trend | None
    """Age and popularity of items, or None; set as these are."""

    def __init__(self, config: Any, shape: ModelShape) -> None:
        """`config`: of the class `Config` that a model nests."""
        super().__init__()
        self.config, self.shape = config, shape
        self.user_embedding = id_embedding(shape.num_users, config.embedding_dim)
        self.item_embedding = id_embedding(shape.num_items, config.embedding_dim)
        self.biases, self.encoders, self.trend = None, None, None
        self.hides_users = not config.user_ids
        """Do all users have the embedding of the OOV id? The tables of a finished model, which
        hold whole vectors, say so themselves."""

    @abstractmethod
    def score(self, user_BD: Tensor, item_BD: Tensor, request: Request) -> Output:
        """The logits of pairs of vectors, without the biases.

        `request`: the known rows of the tables (see `known`), for models that look at ids.
        """

    def forward(self, request: Request) -> Output:
        """The output for each row of `request`."""
        user_BD, item_BD = self.encode_users(request), self.encode_items(request)
        moment, request = request.moment, self.known(request)
        scored = self.score(user_BD, item_BD, request)
        output = checked(scored, type(self).__name__, self.shape.num_logits)
        output = self.with_biases(self.with_trend(output, user_BD, moment), request)
        return output._replace(aux={**output.aux, "users": user_BD})

    def encode_users(self, request: Request) -> Tensor:
        """The users' vectors (B, D). In evaluation, they must not depend on `request.item`."""
        return self._encoded("user", request.user, self.user_embedding, self._told(request))

    def encode_items(self, request: Request) -> Tensor:
        """The items' vectors (B, D). In evaluation, they depend on `request.item` alone."""
        return self._encoded("item", request.item, self.item_embedding, request)

    def _encoded(
        self, entity: Entity, index_B: Tensor, table: nn.Embedding, request: Request
    ) -> Tensor:
        own_BD = table(self._row(index_B, table))
        return own_BD if self.encoders is None else own_BD + self.encoders(entity, request)

    def _row(self, index_B: Tensor, table: nn.Embedding) -> Tensor:
        """Row of the table: that of the OOV id for one beyond it and for a hidden one (~i)."""
        oov = table.num_embeddings - 1
        if self.hides_users and table is self.user_embedding:
            return torch.full_like(index_B, oov)
        if self.shape.is_open:
            index_B = index_B.clamp(max=oov)
        return index_B if self.encoders is None else torch.where(index_B < 0, oov, index_B)

    def _told(self, request: Request) -> Request:
        """With the vectors of the items of its events, for encoders that read them."""
        events = None if request.event_vectors is not None else request.events
        if events is None or self.encoders is None or not self.encoders.reads_events:
            return request
        item_ML = events.item
        item_E, place_ML = item_ML, None
        if self.encoders.of_entity("item"):  # each item once
            item_E, place_ML = item_ML.unique(return_inverse=True)
        vector_ED = self.encode_items(of_items(item_E.flatten()))
        found = vector_ED if place_ML is None else vector_ED[place_ML.flatten()]
        return request._replace(item_vectors=found.unflatten(0, item_ML.shape))

    def encode(self, request: Request) -> Tensor:
        """User vector and item vector, concatenated. (B, 2 D)"""
        return torch.cat([self.encode_users(request), self.encode_items(request)], dim=-1)

    def known(self, request: Request) -> Request:
        """With rows of the tables: the OOV id for others (see `_row`)."""
        user_B = self._row(request.user, self.user_embedding)
        return request._replace(user=user_B, item=self._row(request.item, self.item_embedding))

    def with_trend(self, output: Output, user_BD: Tensor, moment: Moment | None) -> Output:
        """With what age and popularity of the items say, if the model reads them."""
        if self.trend is None or moment is None:
            return output
        return output._replace(logits_BT=output.logits_BT + self.trend(user_BD, moment))

    def with_biases(self, output: Output, request: Request) -> Output:
        """With user and item biases, if the model has them. `request`: of `known`."""
        if self.biases is None:
            return output
        logits_BT = self.biases(output.logits_BT, request.user, request.item)
        return output._replace(logits_BT=logits_BT)

    # Finished models

    def materialize(
        self, like: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The state of a model without static encoders that scores the same, and the state for
        cold starts.

        The tables of the first hold the vectors of all users and items. `like`: the state of the
        finished model, which has rows for OOV ids with an index where `shape.is_open`.
        """
        state = self.state_dict()
        if like is not None:
            state = {name: with_oov_rows(value, like.get(name)) for name, value in state.items()}
        if self.encoders is None:
            return state, {}
        names = "user_embedding.weight", "item_embedding.weight"
        vectors = self.encoders.materialize(*(state[name] for name in names))
        static = tuple(f"{ENCODERS}{name}." for name in self.encoders.static_names())
        plain = {name: value for name, value in state.items() if not name.startswith(static)}
        return {**plain, **dict(zip(names, vectors, strict=True))}, self.encoders.cold_start_state()

    def with_parts(self: R, **parts: nn.Module | None) -> R:
        """A copy with other parts, such as `encoders`; it shares all else."""
        result = copy.copy(self)
        result._modules = {**self._modules}  # which a shallow copy shares
        for name, part in parts.items():
            setattr(result, name, part)
        return result

    def for_inference(self) -> Recommender:
        """A model that scores the same, faster; `self` where there is none."""
        return self

    def prepare_export(self) -> None:
        """Make the shapes of all tensors depend on the number of rows alone."""

    def ranker(self, draws: Draws, whole_rows: int) -> Ranker:
        """What ranks catalogues and scores many pairs.

        `whole_rows`: consecutive rows that are routed together, as in `Predictor.score`.
        """
        return Ranker(self, draws, whole_rows)

    def draws(self, seed: int) -> Draws:
        """The random numbers of a model that scores."""
        return Draws(self.routers, self.reseed, seed)

    @property
    def tables(self) -> list[nn.Embedding]:
        """The embedding tables of ids: users, items."""
        return [self.user_embedding, self.item_embedding]

    @property
    def num_items(self) -> int:
        """Rows of the items' table without the OOV id; more than in training after new items."""
        return self.item_embedding.num_embeddings - 1

    @property
    def device(self) -> torch.device:
        """Where the tables are."""
        return self.user_embedding.weight.device

    # Routers, of models that have them

    @property
    def routers(self) -> list[Router]:
        """One router per task, in the order of the tasks; empty for a model without."""
        return []

    @property
    def experts(self) -> Experts | None:
        """Those that the routers choose from; None for a model without."""
        return None

    def routings(self, request: Request) -> list[Routing]:
        """What the routers decide; empty for a model without."""
        return self(request).routings if self.routers else []

    def expert_shares(self, request: Request) -> Explanation:
        """Per task and row the contributions of the chosen experts; empty for a model without."""
        return []

    # Training

    @property
    def passes(self) -> int:
        """Forward passes of a training step, 1 or 2; their disagreement is a part of the loss."""
        return max((router.passes for router in self.routers), default=1)

    def product(
        self, user_BD: Tensor, item_ND: Tensor, column: int
    ) -> tuple[Tensor, Tensor] | None:
        """Factors (B, R) and (N, R) of the part of a column of the logits that is a product of
        vectors of users and items, less what is of the user alone; None for a model without. For
        the loss of the next item, and for `retrieve`."""
        return None

    @torch.no_grad()
    def start_product(self, column: int) -> None:
        """Before training with the loss of the next item: of the logits that product is for
        `column` alone at first; a large product is noise to other tasks."""

    def auxiliary_loss(self, output: Output, weights: Mapping[str, float]) -> Tensor:
        """What is added to the training loss: penalties by `weights`, and losses of the model's
        own. A scalar."""
        return output.logits_BT.new_zeros(())

    def slow_parameters(self) -> list[nn.Parameter]:
        """Those with `optim.router_lr_multiplier` and without weight decay: of the routers."""
        return [parameter for router in self.routers for parameter in router.parameters()]

    @property
    def last_shared(self) -> list[nn.Parameter]:
        """The last parameters that all tasks share."""
        return [parameter for table in self.tables for parameter in table.parameters()]

    def reseed(self, seed: int) -> None:
        """Give all that draws random numbers a stream of its own from `seed`."""
        if self.encoders is not None:
            self.encoders.reseed(seed)

    def set_epoch(self, epochs: float) -> None:
        """Called before every training step. `epochs`: training done so far, such as 2.25."""

    def on_step_end(self, all_sum: AllSum) -> None:
        """Called once in every training step, after its forward passes and before backward.

        `all_sum` adds up a tensor over the processes; every process must call it equally often.
        """


def id_embedding(count: int, dim: int) -> nn.Embedding:
    """A table of `count` ids and the OOV id."""
    table = nn.Embedding(count + 1, dim)
    nn.init.uniform_(table.weight, -0.05, 0.05)
    return table
