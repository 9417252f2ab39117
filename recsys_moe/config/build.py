"""The untrained model and the loss that a configuration describes for prepared data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from recsys_moe.config.settings import Config, task_weights, training_weights
from recsys_moe.data.entries import table_rows
from recsys_moe.errors import ConfigError, DataError, suggestion
from recsys_moe.kinds import KINDS, Constant, kind_of, rating_task
from recsys_moe.model.biases import Biases
from recsys_moe.model.encoders import Encoders, Features
from recsys_moe.model.item_bag import ItemBag, LinearItemBag
from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.model.weighting import METHODS, Weighting
from recsys_moe.schema import SCHEMA_FILE, FeatureColumn, Schema

LEAST, MOST = 1e-15, 1e15
"""Bounds of the standard deviation and size of labels: float32 (1.2e-38 to 3.4e38) holds sums of
up to 1e8 of their squares."""


def build_model(config: Config, schema: Schema, *, finished: bool = False) -> MultiTaskMoE:
    """The untrained model that a configuration describes for the data of `schema`.

    `finished`: its embeddings are to include features and bags. Raises ConfigError for features or
    ratings that the data do not have.
    """
    sizes = schema.user.size, schema.item.size
    model = config.model
    return MultiTaskMoE(
        *sizes,
        len(schema.tasks),
        router=model.router,
        embedding_dim=model.embedding_dim,
        num_experts=model.num_experts,
        expert_dim=model.expert_dim,
        tower_dims=model.tower_dims,
        dropout=model.dropout,
        bilinear_rank=model.bilinear_rank,
        bilinear_diagonal=model.bilinear_diagonal,
        dispatch=model.dispatch,
        biases=Biases(*sizes, label_constants(schema)) if model.biases else None,
        encoders=None if finished else _encoders(config, schema),
    )


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
    if not known:
        got = wanted if isinstance(wanted, str) else ",".join(wanted)
        raise ConfigError(
            f"model.features must be none for data without features, got {got}; "
            "prepare the data with features, or set model.features=none"
        )
    for name in () if wanted == "all" else wanted:
        if name not in known:
            raise ConfigError(
                f"model.features must be of {', '.join(known)}, got {name!r}; "
                f"{suggestion(name, known)}"
            )
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


MOST_CATEGORIES = 2**24
"""float32, in which batches hold context features, has all whole numbers up to here."""


def chosen_context(config: Config, schema: Schema) -> tuple[FeatureColumn, ...]:
    """Context features of the model, in the order of the data. Raises ConfigError."""
    wanted = config.model.context
    if wanted == "none":
        return ()
    known = {one.name: one for one in schema.context_features}
    if not known:
        got = wanted if isinstance(wanted, str) else ",".join(wanted)
        raise ConfigError(
            f"model.context must be none for data without context features, got {got}; "
            "prepare the data with --context, or set model.context=none"
        )
    for name in () if wanted == "all" else wanted:
        if name not in known:
            raise ConfigError(
                f"model.context must be of {', '.join(known)}, got {name!r}; "
                f"{suggestion(name, known)}"
            )
    chosen = tuple(one for name, one in known.items() if wanted == "all" or name in wanted)
    for one in chosen:
        if one.kind == "multi" or one.size >= MOST_CATEGORIES:
            got = one.kind if one.kind == "multi" else f"{one.size} categories"
            raise ConfigError(
                "model.context must be numeric features or categorical ones of less than "
                f"{MOST_CATEGORIES} categories, got {one.name!r} with {got}; list the others"
            )
    return chosen


WEIGHTED = "weighted_"
"""Prefix of counts in schema.json by the weights of rows."""
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


def _encoders(config: Config, schema: Schema) -> Encoders | None:
    settings = config.model
    if not settings.has_encoders:
        return None
    width, sizes = settings.embedding_dim, (schema.user.size, schema.item.size)
    chosen = zip(chosen_features(config, schema).values(), sizes, strict=True)
    users, items = (
        Features(table_rows(features), width, size) if features else None
        for features, size in chosen
    )
    histories = _history(config, schema, "item_bag"), _history(config, schema, "user_bag")
    return Encoders(users, items, *histories)


def _history(config: Config, schema: Schema, key: BagKey) -> ItemBag | None:
    settings = config.model
    if getattr(settings, key) == "none":
        return None
    sizes = schema.user.size, schema.item.size
    anchors, neighbours = sizes if key == "item_bag" else sizes[::-1]
    levels = bag_levels(config, schema, key)
    kind = LinearItemBag if settings.bag_ratings == "linear" and levels is not None else ItemBag
    return kind(
        anchors,
        neighbours,
        levels=1 if levels is None else levels + 1,
        dims=(settings.bag_dim, settings.embedding_dim),
        dropout=settings.bag_dropout,
    )


def label_constants(schema: Schema) -> list[Constant]:
    """Per task, of the training labels. Raises DataError where schema.json lacks them."""
    try:
        counts = [_weighted(schema.labels["train"][task.name]) for task in schema.tasks]
        kinds = [kind_of(task) for task in schema.tasks]
        constants = [kind.constant(of_task) for kind, of_task in zip(kinds, counts, strict=True)]
        return [Constant(*map(float, constant)) for constant in constants]
    except KeyError as error:
        raise DataError(
            f"{SCHEMA_FILE}: labels.train must hold {error} for model.biases=true; "
            "prepare the data again"
        ) from None
    except (ArithmeticError, ValueError):  # e.g. more positive rows than labelled ones
        raise DataError(
            f"{SCHEMA_FILE}: labels.train holds impossible counts; prepare the data again"
        ) from None


def _weighted(counts: Mapping[str, float]) -> Mapping[str, float]:
    """Counts of training labels; those by the weights of rows replace the others, if any."""
    found = {name: count for name, count in counts.items() if name.startswith(WEIGHTED)}
    return {**counts, **{name.removeprefix(WEIGHTED): count for name, count in found.items()}}


def check_labels(schema: Schema) -> None:
    """Raise DataError for labels whose sums of squares float32 cannot hold.

    Of equal labels, which have no variance, only the size counts.
    """
    for task in schema.tasks:
        counts = schema.labels.get("train", {}).get(task.name, {})
        most = max(abs(counts.get(bound, 0.0)) for bound in ("min", "max"))
        spread = counts.get("std", 0.0)
        if most > MOST or 0 < spread < LEAST:
            got = f"{most:g}" if most > MOST else f"a standard deviation of {spread:g}"
            raise DataError(
                f"labels of {task.name} must be within +-{MOST:g} and have a standard deviation "
                f"of 0 or at least {LEAST:g}, so that float32 holds their squares, got {got}; "
                "prepare them in another unit"
            )


def loss_weights(config: Config, schema: Schema) -> list[float]:
    """Factor of each task's mean loss in results: its weight / the loss of a constant prediction.

    With `optim.loss_normalization=absolute` the weight. Raises ConfigError and DataError.
    """
    return _per_unit(task_weights(config, schema.tasks), config, schema)


def training_loss_weights(config: Config, schema: Schema) -> list[float]:
    """`loss_weights` of the loss that training minimises."""
    return _per_unit(training_weights(config, schema.tasks), config, schema)


def build_weighting(config: Config, schema: Schema) -> Weighting | None:
    """The untrained method of `tasks.weighting`; None for `fixed`.

    Raises ConfigError for fewer than two tasks to weigh.
    """
    settings = config.tasks.weighting
    if settings.name not in METHODS:
        return None
    trained = sum(weight > 0 for weight in training_weights(config, schema.tasks))
    if trained < 2:
        raise ConfigError(
            "tasks.weighting must be fixed with fewer than two tasks of a training weight above "
            f"0, got {settings.name} for {trained}; set tasks.weighting=fixed"
        )
    units = [KINDS[task.kind].likelihood for task in schema.tasks]
    return METHODS[settings.name](settings, units)


def _per_unit(weights: list[float], config: Config, schema: Schema) -> list[float]:
    if unit_of_losses(config) == "absolute":
        return weights
    return [w / c.loss for w, c in zip(weights, label_constants(schema), strict=True)]


def unit_of_losses(config: Config) -> str:
    """`optim.loss_normalization`, with `auto` resolved to `relative` or `absolute`."""
    if config.optim.loss_normalization != "auto":
        return config.optim.loss_normalization
    return "relative" if config.model.biases else "absolute"
