"""Sizes of each router under a configuration: the table of `recsys-moe routers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recsys_moe.config.settings import Config, parse_config, select_router
from recsys_moe.errors import ConfigError
from recsys_moe.routers import ROUTERS, Router, RouterShape, find_router
from recsys_moe.routers.base import FIXED

TASKS = 2
"""Number of tasks where the configuration names none."""


@dataclass(frozen=True, kw_only=True)
class Overview:
    """One router; fields that depend on its settings are None where these are invalid."""

    summary: str
    training: str | None = None
    """Experts an example visits: a number, `dense`, `dense to sparse`, `k on average`, or a number
    and `fixed` where these are the same for every example of a task."""
    inference: str | None = None
    parameters: int | None = None
    """Learned numbers of one task's router."""
    batch_dependent: bool = False
    """True when the other rows of its batch change how a row is routed at inference."""
    problem: str | None = None
    """Why the configuration is invalid with this router."""


def overviews(config: Config) -> dict[str, Overview]:
    """Every router of the table, and the one of `config`, by name.

    Each with the sizes and shared router settings of `config`, as `fit --router NAME` takes them.
    """
    raw = config.model_dump(mode="json", exclude_unset=True, include={"model", "data"})
    names = [*ROUTERS, *([config.router.name] if config.router else [])]
    num_tasks = len(config.tasks.named) or TASKS
    return {name: _overview(raw, name, num_tasks) for name in names}


def _overview(raw: dict[str, Any], name: str, num_tasks: int) -> Overview:
    kind = find_router(name)
    try:
        settings: Any = parse_config(select_router(raw, name)[0]).model
        sizes = 2 * settings.embedding_dim, settings.num_experts
        router = kind(settings.router, RouterShape(*sizes, num_tasks=num_tasks))
    except ConfigError as error:
        problem = str(error)
        return Overview(summary=kind.summary, batch_dependent=kind.batch_dependent, problem=problem)
    return Overview(
        summary=kind.summary,
        training=_visited(router.train()),
        inference=_visited(router.eval()),
        parameters=sum(parameter.numel() for parameter in router.parameters()),
        batch_dependent=kind.batch_dependent,
    )


def _visited(router: Router) -> str:
    """Experts an example visits in the router's current mode, in words."""
    num_experts = router.shape.num_experts
    if router.sparsity == FIXED:
        return f"{router.max_selected} {FIXED}"
    if router.max_selected < num_experts:
        return str(router.max_selected)
    return "dense" if router.kept >= num_experts else router.sparsity
