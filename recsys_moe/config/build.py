"""The untrained model that a configuration describes."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from recsys_moe.config.settings import Config
from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.schema import Schema


def build_model(
    config: Config, schema: Schema, *, tables: Callable[[int, int], nn.Embedding] | None = None
) -> MultiTaskMoE:
    """The untrained model that a configuration describes for the data of `schema`.

    `tables`: see MultiTaskMoE.
    """
    sizes = schema.user.size, schema.item.size, len(schema.tasks)
    return MultiTaskMoE(*sizes, tables=tables, **dict(config.model))
