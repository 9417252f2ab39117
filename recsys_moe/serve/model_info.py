"""The reply of /model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow as pa

import recsys_moe
from recsys_moe.artifact.idle import IDLE_WORDS, idle_experts, spared_experts
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.config.encoders import TIME_FEATURE as TIME
from recsys_moe.inference.attribution.expert_profiles import Trait, spread
from recsys_moe.inference.cold_start.features import FeatureReader
from recsys_moe.inference.context import ContextReader
from recsys_moe.inference.ranking.item_filters import filter_columns
from recsys_moe.inference.ranking.item_values import KEPT, ItemColumn
from recsys_moe.kinds import KINDS
from recsys_moe.schema import Task
from recsys_moe.serve.limits import Limits
from recsys_moe.serve.models import Loaded
from recsys_moe.serve.replies import Item, Part, Reply
from recsys_moe.serve.reply_parts import items_of
from recsys_moe.serve.request_types import ShownId

EXAMPLES = 8
"""Number of example users."""


class TaskInfo(Part):
    name: str
    kind: str
    has_positives: bool
    """Does label 1 mark a positive? Lists are ranked by the first such task unless asked."""
    is_numeric: bool
    """Are predictions in the unit of the labels? Else they are in 0..1."""
    is_probability: bool
    low: float | None
    high: float | None
    """Range of valid labels; null where there is no bound."""
    seen_low: float | None
    seen_high: float | None
    """Smallest and largest training label; null if not recorded."""
    spared: list[int]
    """Experts that validation rarely selected for this task, see `idle_rule`."""


class ExpertInfo(Part):
    expert: int
    idle: bool
    """Do all tasks rarely select it on the rows of the metric card?"""
    spared: bool
    """Is it rarely selected for the popular items that `traits` and `items` are computed on?"""
    traits: list[Trait]
    """Values of item columns for which it is selected more often than average, with the lift."""
    items: list[Item]
    """Popular items for which it is selected most, relative to its average."""


class KnownFeature(Part):
    name: str
    kind: str
    values: list[str]
    """The categories, if there are few."""


class ModelReply(Reply):
    recsys_moe: str
    data: str
    """Name of the training data."""
    users: int
    items: int
    example_users: list[ShownId]
    """A few user ids to try the model with."""
    tasks: list[TaskInfo]
    score_names: list[str]
    item_columns: list[str]
    """Columns that `where` and `columns` may name."""
    item_filters: list[ItemColumn]
    """The same columns with their operators and values for `where`."""
    experts: list[ExpertInfo]
    idle_rule: str
    """What `idle` and `spared` mean."""
    rows_are_independent: bool
    """False if the router routes the rows of a request together: the same pair may then score
    differently in /predict, /recommend and /explain."""
    user_features: list[KnownFeature]
    """Features that a new user may have."""
    context_features: list[KnownFeature]
    """Features that the `context` of a request may have; `time`, of kind `time`, of a model that
    reads when a request is."""
    knows_histories: bool
    """Can a new user have a `history`?"""
    knows_events: bool
    """Does it read `events`, of requests and of /events?"""
    no_attributions: str | None
    """Why /explain gives no `attributions`; null if it does."""
    settings: dict[str, Any]
    """The `model` section of the configuration."""
    metrics: dict[str, Any]
    """The metric card."""
    limits: dict[str, float]


def describe(loaded: Loaded, limits: Limits) -> ModelReply:
    """The reply of /model. It holds no paths of this machine."""
    artifact, predictor = loaded.predictor.artifact, loaded.predictor
    schema, loads = artifact.schema, _loads(artifact.card)
    return ModelReply(
        model=loaded.version,
        recsys_moe=recsys_moe.__version__,
        data=schema.name,
        users=schema.user.size,
        items=schema.item.size,
        example_users=_some_of(predictor.users.ids),
        tasks=[_task(task, artifact, loads) for task in schema.tasks],
        score_names=list(predictor.score_names),
        item_columns=filter_columns(artifact.items),
        item_filters=loaded.columns,
        experts=_experts(loaded, idle_experts(loads.values())),
        idle_rule=IDLE_WORDS,
        rows_are_independent=predictor.rows_are_independent,
        user_features=_features(predictor.cold_users.readers["user"]),
        context_features=_context(predictor.context),
        knows_histories=artifact.config.model.item_bag != "none",
        knows_events=predictor.store is not None,
        no_attributions=predictor.no_attributions,
        settings=artifact.config.model.model_dump(mode="json"),
        metrics=artifact.card,
        limits=asdict(limits),
    )


def _features(reader: FeatureReader) -> list[KnownFeature]:
    found = []
    for name in reader.names:
        values = reader.categories(name)
        few = values if len(values) <= KEPT else []
        found.append(KnownFeature(name=name, kind=reader.kinds[name], values=few))
    return found


def _context(reader: ContextReader) -> list[KnownFeature]:
    times = [KnownFeature(name=TIME, kind=TIME, values=[])] if reader.reads_time else []
    return [*_features(reader), *times]


def _loads(card: dict[str, Any]) -> dict[str, list[float]]:
    """Per task the load of each expert, from the first split of the metric card that has it."""
    for split in card.values():
        if isinstance(split, dict) and isinstance(split.get("routing"), dict):
            return {task: one["load"] for task, one in split["routing"].items() if "load" in one}
    return {}


def _task(task: Task, artifact: Artifact, loads: dict[str, list[float]]) -> TaskInfo:
    counts = artifact.schema.labels.get("train", {}).get(task.name, {})
    return TaskInfo(
        name=task.name,
        kind=task.kind,
        has_positives=KINDS[task.kind].has_positives,
        is_numeric=KINDS[task.kind].is_numeric,
        is_probability=KINDS[task.kind].is_probability,
        low=task.low,
        high=task.high,
        seen_low=counts.get("min"),
        seen_high=counts.get("max"),
        spared=spared_experts(loads.get(task.name, [])),
    )


def _experts(loaded: Loaded, idle: list[int]) -> list[ExpertInfo]:
    return [
        ExpertInfo(
            expert=profile.expert,
            idle=profile.expert in idle,
            spared=profile.spared,
            traits=profile.traits,
            items=items_of(loaded.predictor, loaded.predictor.items.index(profile.items)[0]),
        )
        for profile in loaded.profiles
    ]


def _some_of(ids: pa.Array) -> list[int | str]:
    return list(ids.take(pa.array(spread(len(ids), EXAMPLES).numpy())).to_pylist())
