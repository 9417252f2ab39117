"""Bodies of requests and responses. Strict: a bool is no number, "5" is no k, 1.5 is no id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    create_model,
)

from recsys_moe.serve.limits import Limits

INTEGER = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
WholeNumber = Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[StrictStr, Field(max_length=512)]
IdText = Annotated[Text, Field(pattern=r"\S")]


def _float(number: Any) -> Any:
    """A float takes integers too; those beyond 64 bits would be rounded to one that has room."""
    if not isinstance(number, float):
        raise ValueError("must be a number with a point")
    return number


def _whole(number: float) -> int:
    if not number.is_integer():
        raise ValueError("must be a whole number")
    return int(number)


Pointed = Annotated[
    StrictFloat,
    BeforeValidator(_float),
    Field(ge=-(2**63), lt=2**63),
    AfterValidator(_whole),
    WithJsonSchema(INTEGER),
]
"""7.0, which is an integer in JSON Schema too."""
if TYPE_CHECKING:  # which does not see what a validator returns
    Id = int | str
else:
    Id = WholeNumber | IdText | Pointed
"""A raw id; 7, 7.0 and "7" are the same id, as everywhere."""
Columns = Annotated[
    list[Text],
    Field(max_length=16, examples=[[]], description="Columns of the items to give along."),
]
LARGEST_EXACT = 2**53 - 1
"""JavaScript, and much else that reads JSON, rounds larger whole numbers."""


def exact(raw: Any) -> Any:
    """An id as JSON can carry it everywhere: a large number as text, which is the same id."""
    return str(raw) if isinstance(raw, int) and abs(raw) > LARGEST_EXACT else raw


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Pairs(Request):
    users: list[Id] = Field(min_length=1, examples=[[1, 1]])
    """Raw user ids, one per pair."""
    items: list[Id] = Field(min_length=1, examples=[[2, 3]])
    """Raw item ids, as many as users."""


class RecommendRequest(Request):
    users: list[Id] = Field(min_length=1, examples=[[1]])
    """Raw user ids."""
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


class PredictReply(Reply):
    scores: dict[str, list[float]]
    """Per task one score for each pair: a probability for binary tasks, else a value."""
    calibrated: dict[str, list[float]]
    """Per binary task the probability calibrated on validation; empty for a model without."""
    unseen_user: list[bool]
    unseen_item: list[bool]
    """Training has not seen the id; the row trained for such ids stood in."""


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
    user: int | str
    unseen_user: bool
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


class TaskExplanation(BaseModel):
    score: float
    experts: list[Share]


class Explanation(BaseModel):
    user: int | str
    item: int | str
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
    return _pairs("PredictRequest", limits.max_rows)


def explain_request(limits: Limits) -> type[Pairs]:
    return _pairs("ExplainRequest", limits.max_explain)


def recommend_request(limits: Limits) -> type[RecommendRequest]:
    return create_model(
        "RecommendRequest",
        __base__=RecommendRequest,
        users=(list[Id], Field(min_length=1, max_length=limits.max_users, examples=[[1]])),
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


def _pairs(name: str, rows: int) -> type[Pairs]:
    ids = Field(min_length=1, max_length=rows, examples=[[1, 1]])
    return create_model(name, __base__=Pairs, users=(list[Id], ids), items=(list[Id], ids))
