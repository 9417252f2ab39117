"""What a configuration means for the data of a schema: the untrained model, the loss."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from recsys_moe.config.settings import Config, task_weights
from recsys_moe.errors import DataError
from recsys_moe.model.effects import MainEffects
from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.model.tasks import KINDS, Constant
from recsys_moe.schema import SCHEMA_FILE, Schema


def build_model(
    config: Config, schema: Schema, *, tables: Callable[[int, int], nn.Embedding] | None = None
) -> MultiTaskMoE:
    """The untrained model that a configuration describes for the data of `schema`.

    `tables`: see MultiTaskMoE.
    """
    sizes = schema.user.size, schema.item.size, len(schema.tasks)
    settings = dict(config.model)
    wanted = settings.pop("main_effects")
    effects = MainEffects(*sizes[:2], label_constants(schema)) if wanted else None
    return MultiTaskMoE(*sizes, effects=effects, tables=tables, **settings)


def label_constants(schema: Schema) -> list[Constant]:
    """Per task, of the training labels. Raises DataError when schema.json does not tell."""
    try:
        counts = schema.labels["train"]
        return [KINDS[task.kind].constant(counts[task.name]) for task in schema.tasks]
    except KeyError as error:
        raise DataError(
            f"{SCHEMA_FILE}: labels.train must hold {error} for model.main_effects=true; "
            "prepare the data again"
        ) from None


def loss_weights(config: Config, schema: Schema) -> list[float]:
    """What multiplies each task's mean loss: its weight, per loss of the constant.

    So weights compare tasks and not units. With `optim.losses=absolute` the weights alone.
    Raises ConfigError and DataError.
    """
    weights = task_weights(config, schema.tasks)
    if unit_of_losses(config) == "absolute":
        return weights
    return [w / c.loss for w, c in zip(weights, label_constants(schema), strict=True)]


def unit_of_losses(config: Config) -> str:
    """`relative` to the mean's, or `absolute`: what `optim.losses` comes to."""
    if config.optim.losses != "auto":
        return config.optim.losses
    return "relative" if config.model.main_effects else "absolute"
