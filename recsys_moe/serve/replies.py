"""Bodies of responses."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from recsys_moe.serve.request_types import ShownId, ShownValue


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
