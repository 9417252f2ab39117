"""Bodies of requests and responses."""

from __future__ import annotations

from typing import Annotated, TypeVar

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
from recsys_moe.serve.values import (
    Columns,
    Features,
    History,
    Id,
    NamedItem,
    NewUser,
    Request,
    Text,
    User,
)

P = TypeVar("P", bound="Pairs")


class Pairs(Request):
    users: list[User] = Field(min_length=1, examples=[[1, 1]])
    """Raw user ids, one per pair; of a new user features and history."""
    items: list[NamedItem] = Field(min_length=1, examples=[[2, 3]])
    """Raw item ids, as many as users; of a new item its features."""


class ExplainRequest(Pairs):
    reasons: StrictInt = Field(default=0, ge=0, le=50)
    """Features, and items of the history, to name per task; 0 for no `reasons` at all."""


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


class Reply(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    model: str
    """Version of the model that answered: the first 12 digits of its manifest's SHA-256."""


class UnusedReply(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    categories: dict[str, list[str]]
    """By feature those that training has not seen; they add nothing."""
    items: list[int | str]
    """Of the history those that training has not seen."""
    repeated: list[int | str] = []
    """Of the history those that come again, each once; the first counts."""


class PairUnused(UnusedReply):
    row: int
    """Place of the pair, from 0."""
    side: str
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


class Item(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    item: int | str
    title: str | None
    columns: dict[str, str | int | float | None]
    """What the request named in `columns`."""


class RankedItem(Item):
    rank: int
    scores: dict[str, float]


class Ranking(BaseModel):
    user: int | str | None
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
    item: int | str
    items: list[RankedItem]
    """Nearest first; `scores` holds the `cosine` of the embeddings."""


class SeenReply(Reply):
    user: int | str
    unseen_user: bool
    total: int
    """Items that the user watched in training."""
    items: list[Item]
    """Those that most others watched too first."""


class Share(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    expert: int
    weight: float
    """Routing weight."""
    contribution: float
    """The task's logit minus the logit without this expert."""
    share: float
    """|contribution| over the sum of all |contributions|; they sum to 1 unless all are 0."""


class ReasonReply(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: str
    """`feature`, `item` of the user's history, `history` for all of it or of an item's, or `id`."""
    side: str
    """`user` or `item`: whose it is."""
    name: str | None
    """Of the feature."""
    value: int | float | str | None
    """Category (null: one that training has not seen), number, or raw id of the item."""
    title: str | None
    rating: float | None
    """Of an item of the history, as exactly as the model knows it."""
    contribution: float
    """The task's logit minus the logit without it."""
    words: str


class TaskExplanation(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    score: float
    experts: list[Share]
    reasons: list[ReasonReply] = []
    """What was left out in turn, the largest contribution first; empty unless it is asked for."""


class Explanation(BaseModel):
    user: int | str | None
    item: int | str | None
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


def predict_request(limits: Limits) -> type[Pairs]:
    return _pairs("PredictRequest", limits.max_rows, Pairs)


def explain_request(limits: Limits) -> type[ExplainRequest]:
    return _pairs("ExplainRequest", limits.max_explain, ExplainRequest)


def recommend_request(limits: Limits) -> type[RecommendRequest]:
    return create_model(
        "RecommendRequest",
        __base__=RecommendRequest,
        users=(list[User], Field(default=[], max_length=limits.max_users, examples=[[1]])),
        k=(StrictInt, Field(default=10, ge=1, le=limits.max_k)),
        candidates=(
            Annotated[list[Id], Field(min_length=1, max_length=limits.max_rows)] | None,
            None,
        ),
    )


def similar_request(limits: Limits) -> type[SimilarRequest]:
    k = (StrictInt, Field(default=10, ge=1, le=limits.max_k))
    return create_model("SimilarRequest", __base__=SimilarRequest, k=k)


def seen_request(limits: Limits) -> type[SeenRequest]:
    k = (StrictInt, Field(default=20, ge=1, le=limits.max_k))
    return create_model("SeenRequest", __base__=SeenRequest, k=k)


def _pairs(name: str, rows: int, base: type[P]) -> type[P]:
    ids = Field(min_length=1, max_length=rows, examples=[[1, 1]])
    return create_model(name, __base__=base, users=(list[User], ids), items=(list[NamedItem], ids))
