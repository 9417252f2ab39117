"""The optimizer of a configuration: which parameters move at which rate, and which rows when."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from recsys_moe.config.settings import Config
from recsys_moe.model.lazy_adam import LazyAdam, fits
from recsys_moe.model.network import MultiTaskMoE

LAZY_FROM = 40
"""Rows of an embedding table per row of a batch from which `optim.embeddings=auto` is lazy on a
CPU. See benchmarks/embeddings.py."""


def make_optimizer(model: MultiTaskMoE, config: Config) -> torch.optim.Optimizer:
    """Adam, or LazyAdam where embedding tables are lazy, whose gradients become sparse."""
    settings, groups = config.optim, _groups(model, config)
    common: dict[str, Any] = {"lr": settings.lr, "betas": settings.betas, "eps": settings.eps}
    lazy = _lazy_tables(model, config)
    for table in tables_of(model):
        table.sparse = table in lazy  # whether its gradient has only the rows that were read
    if not lazy:
        return torch.optim.Adam(groups, weight_decay=settings.weight_decay, fused=True, **common)
    return LazyAdam(groups, [table.weight for table in lazy], **common)


def tables_of(model: MultiTaskMoE) -> list[nn.Embedding]:
    """The embedding tables: users, items."""
    return [model.user_embedding, model.item_embedding]


def _groups(model: MultiTaskMoE, config: Config) -> list[dict[str, Any]]:
    """All parameters, those of the routers apart where they have a rate or a decay of their own.

    Routers do not decay: the gradient of a sampled one is so small (docs/routers.md) that decay
    would hold its gate at 0.
    """
    settings, gates = config.optim, list(model.moe.routers.parameters())
    if not gates or (settings.gate_rate == 1 and not settings.weight_decay):
        return [{"params": list(model.parameters())}]
    known = {id(gate) for gate in gates}
    others = [value for value in model.parameters() if id(value) not in known]
    own = {"lr": settings.lr * settings.gate_rate, "weight_decay": 0.0}
    return [{"params": others}, {"params": gates, **own}]


def _lazy_tables(model: MultiTaskMoE, config: Config) -> list[nn.Embedding]:
    """The embedding tables whose rows move only when they are read."""
    settings, tables = config.optim, tables_of(model)
    if settings.embeddings != "auto":
        return tables if settings.embeddings == "lazy" else []
    if settings.weight_decay or not fits(settings.betas) or config.trainer.processes > 1:
        return []
    rows = LAZY_FROM * config.trainer.batch_size
    return [t for t in tables if t.num_embeddings >= rows and t.weight.device.type == "cpu"]
