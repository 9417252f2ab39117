"""What tables and files ask of a Predictor, which imports them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.inference.cold_start.encode import ColdStart
from recsys_moe.inference.cold_start.whom import Whom
from recsys_moe.inference.context import ContextReader
from recsys_moe.inference.events.store import EventStore
from recsys_moe.inference.events.user_events import Identity
from recsys_moe.inference.scoring.pair_scores import Scores
from recsys_moe.inference.vocabulary import Vocabulary
from recsys_moe.schema import Task


class IdScorer(Protocol):
    """Scores raw ids. See `Predictor`."""

    artifact: Artifact
    cold_users: ColdStart
    context: ContextReader
    items: Vocabulary
    store: EventStore | None
    tasks: tuple[Task, ...]
    users: Vocabulary

    @property
    def prediction_names(self) -> list[str]: ...
    def are_unseen_users(self, users: Whom) -> list[bool]: ...
    def observed(self, raw_id: Mapping[int, Identity]) -> dict[int, Identity]: ...
    def score(self, users: Whom, items: Whom, *, context: Any, calibrate: bool = ...) -> Scores: ...
