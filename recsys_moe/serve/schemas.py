"""Bodies of requests and responses. Strict: a bool is no number, "5" is no k, 1.5 is no id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
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


def _whole(number: float) -> int:
    if not number.is_integer():
        raise ValueError("must be a whole number")
    return int(number)


Pointed = Annotated[
    StrictFloat, Field(ge=-(2**63), lt=2**63), AfterValidator(_whole), WithJsonSchema(INTEGER)
]
"""7.0, which is an integer in JSON Schema too."""
if TYPE_CHECKING:  # which does not see what a validator returns
    Id = int | str
else:
    Id = WholeNumber | IdText | Pointed
"""A raw id; 7, 7.0 and "7" are the same id, as everywhere."""
LARGEST_EXACT = 2**53 - 1
"""JavaScript, and much else that reads JSON, rounds larger whole numbers."""


def exact(raw: int | str) -> int | str:
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


class RankedItem(BaseModel):
    rank: int
    item: int | str
    title: str | None
    scores: dict[str, float]


class Ranking(BaseModel):
    user: int | str
    unseen_user: bool
    items: list[RankedItem]
    """Best first; fewer than k where fewer are left."""


class RecommendReply(Reply):
    rankings: list[Ranking]
    """One per user, in the order of the request."""


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


class TaskInfo(BaseModel):
    name: str
    kind: str
    low: float | None
    high: float | None


class ModelReply(Reply):
    recsys_moe: str
    data: str
    """Name of the data set it learned from."""
    users: int
    items: int
    example_users: list[int | str]
    """A few ids of users, spread over all of them, to try the model with."""
    tasks: list[TaskInfo]
    score_names: list[str]
    item_columns: list[str]
    """Columns that conditions in `where` may name."""
    rows_are_independent: bool
    """False where the router decides about the rows of a request together: the same pair may then
    score differently in /predict, /recommend and /explain."""
    settings: dict[str, Any]
    """The `model` section of its configuration."""
    metrics: dict[str, Any]
    """Its metric card."""
    limits: dict[str, float]


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


def _pairs(name: str, rows: int) -> type[Pairs]:
    ids = Field(min_length=1, max_length=rows, examples=[[1, 1]])
    return create_model(name, __base__=Pairs, users=(list[Id], ids), items=(list[Id], ids))
