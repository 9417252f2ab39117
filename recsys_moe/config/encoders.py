"""The table of encoders: which ones a configuration asks for, built for the data.

To add one, write its class in a file of recsys_moe/model/encoders and list it in ENCODERS.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from recsys_moe.config.settings import Config
from recsys_moe.data.entries import table_rows
from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.kinds import KINDS, rating_task
from recsys_moe.model.encoders.base import Encoder, Encoders, Entity
from recsys_moe.model.encoders.context import Context
from recsys_moe.model.encoders.features import Features
from recsys_moe.model.encoders.item_bag import ItemBag, LinearItemBag
from recsys_moe.model.encoders.moment import SIZES, SinceLast, UserMoment
from recsys_moe.model.encoders.sequence import EventSequence
from recsys_moe.schema import FeatureColumn, Schema

MOST_CATEGORIES = 2**24
"""float32, in which batches hold context features, has all whole numbers up to here."""
TIME_FEATURE = "time"
"""The time of a request in its context."""
BagKey = Literal["item_bag", "user_bag"]
"""Settings of the bags of users and of items."""


def bag_levels(config: Config, schema: Schema, key: BagKey = "item_bag") -> int | None:
    """Levels of ratings in these bags; None for bags without ratings.

    Raises ConfigError for `ratings` and data without a task of ratings.
    """
    if getattr(config.model, key) != "ratings":
        return None
    if rating_task(schema.tasks) is None:
        other = {"item_bag": "items", "user_bag": "users"}[key]
        raise ConfigError(
            f"model.{key} must be none or {other} for data without a {_rating_kinds()} task, got "
            f"ratings; set model.{key}={other}"
        )
    return config.model.bag_levels


def _rating_kinds() -> str:
    return " or ".join(kind.name for kind in KINDS.values() if kind.is_rating)


def build_encoders(config: Config, schema: Schema, *, finished: bool = False) -> Encoders | None:
    """The encoders of a model, None without any; of a `finished` model those that are not static.

    Raises ConfigError for features or ratings that the data do not have.
    """
    wanted = {
        n: build for n, (kind, build) in ENCODERS.items() if not (finished and kind.is_static)
    }
    built = {name: build(config, schema) for name, build in wanted.items()}
    parts = {name: part for name, part in built.items() if part is not None}
    return Encoders(**parts) if parts else None


def _features(entity: Entity, config: Config, schema: Schema) -> Features | None:
    features = chosen_features(config, schema)[entity]
    if not features:
        return None
    size = (schema.user if entity == "user" else schema.item).size
    return Features(entity, table_rows(features), config.model.embedding_dim, entities=size)


def _bag(key: BagKey, config: Config, schema: Schema) -> ItemBag | None:
    settings = config.model
    if getattr(settings, key) == "none":
        return None
    sizes = schema.user.size, schema.item.size
    entity: Entity = "user" if key == "item_bag" else "item"
    levels = bag_levels(config, schema, key)
    kind = LinearItemBag if settings.bag_ratings == "linear" and levels is not None else ItemBag
    return kind(
        entity,
        sizes if entity == "user" else sizes[::-1],
        levels=1 if levels is None else levels + 1,
        dims=(settings.bag_dim, settings.embedding_dim),
        dropout=settings.bag_dropout,
        sample=settings.bag_sample,
    )


def _context(config: Config, schema: Schema) -> Context | None:
    features = chosen_context(config, schema)
    if not features:
        return None
    sizes = [None if one.kind == "numeric" else one.size for one in features]
    return Context(sizes, config.model.embedding_dim)


def _sequence(config: Config, schema: Schema) -> EventSequence | None:
    settings = config.model
    if settings.sequence == "none":
        return None
    encoder = EventSequence(
        settings.sequence,
        settings.embedding_dim,
        length=settings.sequence_length,
        blocks=settings.sequence_blocks,
        dropout=settings.sequence_dropout,
        gain=settings.sequence_gain,
    )
    if "gap" in settings.chosen_times:
        encoder.since_last = SinceLast(settings.embedding_dim)
    return encoder


def _moment(config: Config, schema: Schema) -> UserMoment | None:
    names = [name for name in config.model.chosen_times if name in SIZES]
    return UserMoment(names, config.model.embedding_dim) if names else None


ENCODERS: dict[str, tuple[type[Encoder], Callable[[Config, Schema], Encoder | None]]] = {
    "users": (Features, partial(_features, "user")),
    "items": (Features, partial(_features, "item")),
    "item_bag": (ItemBag, partial(_bag, "item_bag")),
    "user_bag": (ItemBag, partial(_bag, "user_bag")),
    "context": (Context, _context),
    "sequence": (EventSequence, _sequence),
    "moment": (UserMoment, _moment),
}
"""By name in the weights: the class, and how to build it; None where the configuration asks for
none. They are added in this order."""


def chosen_features(config: Config, schema: Schema) -> dict[str, tuple[FeatureColumn, ...]]:
    """Features of the model, by entity. Raises ConfigError for unknown ones."""
    entities = {"user": schema.user_features, "item": schema.item_features}
    wanted, known = (
        config.model.features,
        [one.name for entity in entities.values() for one in entity],
    )
    if wanted == "none":
        return dict.fromkeys(entities, ())
    _refuse_context(wanted, schema)
    _check_names("features", wanted, known, "with features")
    return {
        entity: tuple(one for one in features if wanted == "all" or one.name in wanted)
        for entity, features in entities.items()
    }


def _refuse_context(wanted: str | tuple[str, ...], schema: Schema) -> None:
    for one in schema.context_features:
        if one.name in wanted and wanted != "all":
            raise ConfigError(
                f"model.features must be features of users and items, got {one.name!r}, a context "
                f"feature; pass model.context={one.name}"
            )


def chosen_context(config: Config, schema: Schema) -> tuple[FeatureColumn, ...]:
    """Context features of the model, in the order of the data. Raises ConfigError."""
    wanted = config.model.context
    if wanted == "none":
        return ()
    known = {one.name: one for one in schema.context_features}
    _check_names("context", wanted, [*known], "with --context")
    chosen = tuple(one for name, one in known.items() if wanted == "all" or name in wanted)
    for one in chosen:
        if one.name == TIME_FEATURE and config.model.chosen_times:
            raise ConfigError(
                f"model.context must not hold {TIME_FEATURE!r} with model.time_features, the name "
                "of the time of a request; prepare the feature under another name"
            )
        if not is_readable(one):
            got = one.kind if one.kind == "multi" else f"{one.size} categories"
            raise ConfigError(
                "model.context must be numeric features or categorical ones of less than "
                f"{MOST_CATEGORIES} categories, got {one.name!r} with {got}; list the others"
            )
    return chosen


def numbers_a_row(config: Config, schema: Schema) -> int:
    """What is held of a row besides ids, for `rows_within`: context features, and first and end of
    the events before it and its time (of two numbers) for models that read the past."""
    return len(chosen_context(config, schema)) + 4 * config.model.reads_past


def is_readable(feature: FeatureColumn) -> bool:
    """Whether a model can read this context feature."""
    return feature.kind != "multi" and feature.size < MOST_CATEGORIES


def _check_names(setting: str, wanted: str | tuple[str, ...], known: list[str], how: str) -> None:
    """Raise ConfigError for names that the data lack; `how` they are prepared to have any."""
    if not known:
        kind = "context features" if setting == "context" else setting
        got = wanted if isinstance(wanted, str) else ",".join(wanted)
        raise ConfigError(
            f"model.{setting} must be none for data without {kind}, got {got}; "
            f"prepare the data {how}, or set model.{setting}=none"
        )
    for name in () if wanted == "all" else wanted:
        if name not in known:
            raise ConfigError(
                f"model.{setting} must be of {', '.join(known)}, got {name!r}; "
                f"{suggestion(name, known)}"
            )
