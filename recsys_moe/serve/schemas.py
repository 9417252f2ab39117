"""Bodies of requests and responses."""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    create_model,
    model_validator,
)

from recsys_moe.serve.limits import Limits
from recsys_moe.serve.request_types import (
    Columns,
    Features,
    History,
    Id,
    NamedItem,
    NewUser,
    Request,
    ShownId,
    ShownValue,
    Text,
    User,
)


class Pairs(Request):
    users: list[User] = Field(min_length=1, examples=[[1, 1]])
    """Raw user ids, one per pair; of a new user features and history."""
    items: list[NamedItem] = Field(min_length=1, examples=[[2, 3]])
    """Raw item ids, as many as users; of a new item its features."""

    @model_validator(mode="after")
    def _as_many(self) -> Pairs:
        users, items = len(self.users), len(self.items)
        if users != items:
            raise ValueError(f"users and items must be as many, got {users} and {items}")
        return self

    @property
    def rows(self) -> int:
        return len(self.users)


class ExplainRequest(Pairs):
    attributions: StrictInt = Field(default=0, ge=0, le=50)
    """Features, and items of the history, to name per task; 0 for no `attributions` at all."""


class RecommendRequest(Request):
    users: list[User] = Field(default=[], examples=[[1]])
    """Raw user ids; of new users features and history."""
    features: Features = Field(default={}, examples=[{}])
    """Of one new user, whose ranking is the last."""
    history: History = Field(default=[], examples=[[]])
    """Of that user: items, or an object with the rating of each."""
    k: StrictInt = Field(default=10, ge=1)
    """Items per user."""
    exclude_seen: StrictBool = False
    """Leave out what the user watched in training."""
    candidates: list[Id] | None = None
    """Rank these items only."""
    where: list[Text] = Field(default=[], max_length=16, examples=[[]])
    """Conditions on the columns of the items, such as genres=Comedy; all must hold."""
    score: Text | None = None
    """What to rank on, one of `score_names` of /model; by default the first binary task."""
    columns: Columns = []

    @model_validator(mode="after")
    def _for_somebody(self) -> RecommendRequest:
        if not self.everybody:
            raise ValueError("users, or features and history of a new user, must be there")
        return self

    @property
    def everybody(self) -> list[User]:
        """The users, and behind them the one that is told of."""
        if not self.features and not self.history:
            return self.users
        return [*self.users, NewUser(features=self.features, history=self.history)]

    @property
    def rows(self) -> int:
        return len(self.everybody)


class SimilarRequest(Request):
    item: Id = Field(examples=[2])
    """Raw item id, of an item that training has seen."""
    k: StrictInt = Field(default=10, ge=1)
    """Other items."""
    columns: Columns = []


class SeenRequest(Request):
    user: Id = Field(examples=[1])
    """Raw user id."""
    k: StrictInt = Field(default=20, ge=1)
    """At most so many items; `total` of the answer counts all."""
    columns: Columns = []


class Part(BaseModel):
    """Of an answer."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Reply(Part):
    model: str
    """Version of the model that answered: the first 12 digits of its manifest's SHA-256."""


class UnusedReply(Part):
    categories: dict[str, list[str]]
    """By feature those that training has not seen; they add nothing."""
    items: list[ShownId]
    """Of the history those that training has not seen."""
    repeated: list[ShownId] = []
    """Of the history those that come again, each once; the first counts."""


class PairUnused(UnusedReply):
    row: int
    """Place of the pair, from 0."""
    entity: str
    """`user` or `item`."""


class PredictReply(Reply):
    scores: dict[str, list[float]]
    """Per task one score for each pair: a probability for binary tasks, else a value."""
    calibrated: dict[str, list[float]]
    """Per binary task the probability calibrated on validation; empty for a model without."""
    unseen_user: list[bool]
    unseen_item: list[bool]
    """Training has not seen the id; the row trained for such ids stood in."""
    unused: list[PairUnused] = []
    """What of new users and items the model could not use; those of which it used all are left
    out."""


class Item(Part):
    item: ShownId
    title: str | None
    columns: dict[str, ShownValue]
    """What the request named in `columns`."""


class RankedItem(Item):
    rank: int
    scores: dict[str, float]


class Ranking(BaseModel):
    user: ShownId | None
    """Null for a new user."""
    unseen_user: bool
    unused: UnusedReply | None = None
    """What of a new user the model could not use."""
    items: list[RankedItem]
    """Best first; fewer than k where fewer are left."""


class RecommendReply(Reply):
    rankings: list[Ranking]
    """One per user, in the order of the request."""


class SimilarReply(Reply):
    item: ShownId
    items: list[RankedItem]
    """Nearest first; `scores` holds the `cosine` of the embeddings."""


class SeenReply(Reply):
    user: ShownId
    unseen_user: bool
    total: int
    """Items that the user watched in training."""
    items: list[Item]
    """Those that most others watched too first."""


class Share(Part):
    expert: int
    weight: float
    """Routing weight."""
    contribution: float
    """The task's logit minus the logit without this expert."""
    share: float
    """|contribution| over the sum of all |contributions|; they sum to 1 unless all are 0."""


class AttributionReply(Part):
    kind: str
    """`feature`, `item` of the user's history, `history` for all of it or of an item's, or `id`."""
    entity: str
    """`user` or `item`: whose it is."""
    name: str | None
    """Of the feature."""
    value: ShownValue
    """Category (null: one that training has not seen), number, or raw id of the item."""
    title: str | None
    rating: float | None
    """Of an item of the history, as exactly as the model knows it."""
    contribution: float
    """The task's logit minus the logit without it."""
    words: str


class TaskExplanation(Part):
    score: float
    experts: list[Share]
    attributions: list[AttributionReply] = []
    """What was left out in turn, the largest contribution first; empty unless it is asked for."""


class Explanation(BaseModel):
    user: ShownId | None
    item: ShownId | None
    unseen_user: bool
    unseen_item: bool
    tasks: dict[str, TaskExplanation]


class ExplainReply(Reply):
    pairs: list[Explanation]


class ReloadReply(Reply):
    changed: bool
    """False when the folder still holds the model that is being served."""


class HealthReply(BaseModel):
    status: str


class ErrorReply(BaseModel):
    error: str


def request_types(limits: Limits) -> dict[str, type[Request]]:
    """By path, without its slash: the body of requests, within the limits."""
    k = Annotated[StrictInt, Field(le=limits.max_k)]
    candidates = Annotated[list[Id], Field(min_length=1, max_length=limits.max_rows)] | None
    users = Annotated[list[User], Field(max_length=limits.max_users)]
    return {
        "predict": _bounded("PredictRequest", Pairs, **_pairs(limits.max_rows)),
        "recommend": _bounded(
            "RecommendRequest", RecommendRequest, users=users, k=k, candidates=candidates
        ),
        "explain": _bounded("ExplainRequest", ExplainRequest, **_pairs(limits.max_explain)),
        "similar": _bounded("SimilarRequest", SimilarRequest, k=k),
        "seen": _bounded("SeenRequest", SeenRequest, k=k),
    }


def _pairs(most: int) -> dict[str, Any]:
    bound = Field(max_length=most)
    return {"users": Annotated[list[User], bound], "items": Annotated[list[NamedItem], bound]}


def _bounded(name: str, base: type[Request], **kinds: Any) -> type[Request]:
    """`base` with other types of some fields, whose defaults and descriptions stay."""
    fields: dict[str, Any] = {
        field: (kind, copy(base.model_fields[field])) for field, kind in kinds.items()
    }
    return create_model(name, __base__=base, **fields)
