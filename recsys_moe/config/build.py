"""The untrained model and the loss that a configuration describes for prepared data."""

from __future__ import annotations

from collections.abc import Mapping

from recsys_moe.config.encoders import build_encoders
from recsys_moe.config.settings import Config, task_weights, training_weights
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.kinds import Constant, kind_of
from recsys_moe.model.biases import Biases
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.registry import find_model
from recsys_moe.model.shape import ModelShape
from recsys_moe.model.trend import NAMES, Trend
from recsys_moe.model.weighting import METHODS, Weighting
from recsys_moe.schema import SCHEMA_FILE, Schema

LEAST, MOST = 1e-15, 1e15
"""Bounds of the standard deviation and size of labels: float32 (1.2e-38 to 3.4e38) holds sums of
up to 1e8 of their squares."""


def build_model(config: Config, schema: Schema, *, finished: bool = False) -> Recommender:
    """The untrained model that a configuration describes for the data of `schema`.

    `finished`: its embeddings are to include features and bags, and those of ids that are out of
    vocabulary. Raises ConfigError for features or ratings that the data do not have.
    """
    settings, shape = config.model, model_shape(schema, finished)
    model = find_model(settings.name)(settings, shape)
    if not hasattr(model, "hides_users"):
        raise ConfigError(
            f"model.name={settings.name}: __init__ must call super().__init__(config, shape)"
        )
    # After all else: optimizers in checkpoints number the parameters.
    if settings.biases:
        constants = sum(label_constants(schema), [])
        model.biases = Biases(shape.num_users, shape.num_items, constants)
    model.hides_users = model.hides_users and not finished
    model.encoders = build_encoders(config, schema, finished=finished)
    if names := [name for name in settings.chosen_times if name in NAMES]:
        model.trend = Trend(names, settings.embedding_dim, shape.num_logits)
    return model


def model_shape(schema: Schema, finished: bool = False) -> ModelShape:
    """Users, items, tasks and logits of a model for these data."""
    outputs = tuple(kind_of(task).outputs for task in schema.tasks)
    users, items = (one.size if finished else one.trained for one in (schema.user, schema.item))
    is_open = (users, items) != (schema.user.size, schema.item.size)
    return ModelShape(users, items, len(outputs), outputs, is_open)


WEIGHTED = "weighted_"
"""Prefix of counts in schema.json by the weights of rows."""


def label_constants(schema: Schema) -> list[list[Constant]]:
    """Per task and output. Raises DataError where schema.json lacks counts of training labels."""
    try:
        counts = [_weighted(schema.labels["train"][task.name]) for task in schema.tasks]
        kinds = [kind_of(task) for task in schema.tasks]
        constants = [kind.constants(of_task) for kind, of_task in zip(kinds, counts, strict=True)]
        return [[Constant(*map(float, one)) for one in of_task] for of_task in constants]
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
    units = [kind_of(task).likelihood for task in schema.tasks]
    return METHODS[settings.name](settings, units)


def _per_unit(weights: list[float], config: Config, schema: Schema) -> list[float]:
    if unit_of_losses(config) == "absolute":
        return weights
    return [w / c[0].loss for w, c in zip(weights, label_constants(schema), strict=True)]


def unit_of_losses(config: Config) -> str:
    """`optim.loss_normalization`, with `auto` resolved to `relative` or `absolute`."""
    if config.optim.loss_normalization != "auto":
        return config.optim.loss_normalization
    return "relative" if config.model.biases else "absolute"
