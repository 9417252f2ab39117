"""Bodies of requests."""

from __future__ import annotations

from pydantic import Field, StrictBool, StrictInt, model_validator

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
    """Leave out the user's positives of training, and the items of the history and the events."""
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
