"""Bodies of requests and responses."""

from __future__ import annotations

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    model_validator,
)

from recsys_moe.serve.request_types import (
    Columns,
    Context,
    Features,
    History,
    Id,
    NamedItem,
    NewUser,
    OwnEvents,
    Request,
    ShownId,
    ShownValue,
    Text,
    User,
    UserEvent,
)


class Pairs(Request):
    users: list[User] = Field(min_length=1, examples=[[1, 1]])
    """User ids, one per pair; for a new user an object of features and history."""
    items: list[NamedItem] = Field(min_length=1, examples=[[2, 3]])
    """Item ids, one per pair; for a new item an object of features."""
    context: Context = Field(default={}, examples=[{}])
    """Context features by name, of all pairs or a list with an object per pair."""
    events: OwnEvents = Field(default_factory=list, examples=[[]])
    """What the users did besides what is stored, of all pairs or a list of lists, one per pair."""

    @model_validator(mode="after")
    def _same_length(self) -> Pairs:
        users, items = len(self.users), len(self.items)
        if users != items:
            raise ValueError(f"users and items must have the same length, got {users} and {items}")
        return self

    @property
    def rows(self) -> int:
        return len(self.users)


class PredictRequest(Pairs):
    """Scores of pairs."""


class ExplainRequest(Pairs):
    attributions: StrictInt = Field(default=0, ge=0, le=50)
    """Number of features, and of history items, to list per task; 0 for no `attributions`."""


class RecommendRequest(Request):
    users: list[User] = Field(default=[], examples=[[1]])
    """User ids; for a new user an object of features and history."""
    features: Features = Field(default={}, examples=[{}])
    """Features of one new user, whose ranking comes last."""
    history: History = Field(default=[], examples=[[]])
    """History of that new user: item ids, or an object of id -> rating."""
    context: Context = Field(default={}, examples=[{}])
    """Context features by name, of all users or a list with an object per user."""
    events: OwnEvents = Field(default=[], examples=[[]])
    """What the users did besides what is stored, of all users or a list of lists, one per user;
    without users, of one new user."""
    k: StrictInt = Field(default=10, ge=1)
    """Items per user."""
    exclude_seen: StrictBool = False
    """Leave out the items the user interacted with in training."""
    candidates: list[Id] | None = None
    """Rank only these items."""
    where: list[Text] = Field(default=[], max_length=16, examples=[[]])
    """Conditions on item columns, such as genres=Comedy; all must hold."""
    score: Text | None = None
    """Score to rank by, one of `score_names` of /model; by default the first binary task."""
    columns: Columns = []

    @model_validator(mode="after")
    def _not_empty(self) -> RecommendRequest:
        if not self.everybody:
            rule = "users must not be empty without features, history or events of a new user"
            raise ValueError(rule)
        return self

    @property
    def everybody(self) -> list[User]:
        """The users, then the new user of `features`, `history` or, without users, `events`."""
        is_new = self.features or self.history or (self.events and not self.users)
        if not is_new:
            return self.users
        return [*self.users, NewUser(features=self.features, history=self.history)]

    @property
    def rows(self) -> int:
        return len(self.everybody)


class EventsRequest(Request):
    events: list[UserEvent] = Field(min_length=1)
    """What users did, in the order in which they did it."""

    @property
    def rows(self) -> int:
        return len(self.events)


class SimilarRequest(Request):
    item: Id = Field(examples=[2])
    """Id of an item in the training data."""
    k: StrictInt = Field(default=10, ge=1)
    """Number of items."""
    columns: Columns = []


class SeenRequest(Request):
    user: Id = Field(examples=[1])
    """User id."""
    k: StrictInt = Field(default=20, ge=1)
    """Maximum number of items; `total` of the answer counts all."""
    columns: Columns = []


class Part(BaseModel):
    """Part of a reply."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Reply(Part):
    model: str
    """Version of the model that answered: the first 12 digits of its manifest's SHA-256."""


class UnusedReply(Part):
    categories: dict[str, list[str]]
    """By feature, unknown categories, which are ignored."""
    items: list[ShownId]
    """Unknown items of the history, which are ignored."""
    repeated: list[ShownId] = []
    """Duplicate items of the history; the first one counts."""


class PairUnused(UnusedReply):
    row: int
    """Index of the pair, from 0."""
    entity: str
    """`user`, `item` or `context`."""


class PredictReply(Reply):
    scores: dict[str, list[float]]
    """Per task one score per pair: a probability for binary tasks, else a value."""
    calibrated: dict[str, list[float]]
    """Per binary task the calibrated probability; empty for a model without calibration."""
    classes: dict[str, list[str]] = {}
    """Per task with classes the most likely one; `scores` has TASK_CLASS for each."""
    unseen_user: list[bool]
    unseen_item: list[bool]
    """True if the id is unknown: it was scored with the out-of-vocabulary embedding."""
    unused: list[PairUnused] = []
    """Parts of new users and items, and of contexts, that the model could not use, where there are
    any."""


class Item(Part):
    item: ShownId
    title: str | None
    columns: dict[str, ShownValue]
    """The columns requested in `columns`."""


class RankedItem(Item):
    rank: int
    scores: dict[str, float]


class Ranking(BaseModel):
    user: ShownId | None
    """Null for a new user."""
    unseen_user: bool
    unused: UnusedReply | None = None
    """Parts of a new user, and of the context, that the model could not use."""
    items: list[RankedItem]
    """Best first; fewer than k if fewer items are left."""


class RecommendReply(Reply):
    rankings: list[Ranking]
    """One per user, in the order of the request."""


class RejectedEvent(Part):
    row: int
    """Index of the event, from 0."""
    reason: str


class EventsReply(Reply):
    stored: int
    """Events that the next request sees."""
    duplicates: int
    """Events that were delivered before: nothing changed."""
    rejected: list[RejectedEvent]
    """Events that were not stored; the others were."""


class SimilarReply(Reply):
    item: ShownId
    items: list[RankedItem]
    """Most similar first; `scores` holds the `cosine` of the embeddings."""


class SeenReply(Reply):
    user: ShownId
    unseen_user: bool
    total: int
    """Number of items the user interacted with in training."""
    items: list[Item]
    """Most popular first."""


class Share(Part):
    expert: int
    weight: float
    """Routing weight."""
    contribution: float
    """The task's logit minus the logit without this expert."""
    share: float
    """|contribution| divided by the sum over all experts."""


class AttributionReply(Part):
    kind: str
    """`feature`, `item` (of the user's history), `history` (a whole one), or `id`."""
    entity: str
    """`user`, `item` or `context`."""
    name: str | None
    """Name of the feature."""
    value: ShownValue
    """Category (null: unknown), number, or item id."""
    title: str | None
    rating: float | None
    """Rating of a history item, as exactly as the model knows it."""
    contribution: float
    """The task's logit minus the logit without it."""
    words: str


class TaskExplanation(Part):
    score: float
    experts: list[Share]
    attributions: list[AttributionReply] = []
    """Largest contribution first; empty unless `attributions` is requested."""


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
    """False if the folder still holds the model in use."""


class HealthReply(BaseModel):
    status: str


class ErrorReply(BaseModel):
    error: str
