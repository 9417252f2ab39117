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
    settings = config.model
    return MultiTaskMoE(
        schema.user.size,
        schema.item.size,
        len(schema.tasks),
        router=settings.router,
        embedding_dim=settings.embedding_dim,
        num_experts=settings.num_experts,
        expert_dim=settings.expert_dim,
        tower_dims=settings.tower_dims,
        dropout=settings.dropout,
        dispatch=settings.dispatch,
        tables=tables,
    )
