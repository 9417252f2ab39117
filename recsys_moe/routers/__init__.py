"""The table of routers. To add one, write its class in a file here and list it in ROUTERS."""

from __future__ import annotations

import difflib
from typing import Any, cast

from pydantic import ValidationError

from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.outside import import_class, not_derived, refuse_missing
from recsys_moe.routers.base import Router, RouterShape, Routing
from recsys_moe.routers.base_layer import BaseLayerRouter
from recsys_moe.routers.comet import CometRouter
from recsys_moe.routers.default_moe import DefaultMoERouter
from recsys_moe.routers.dselect_k import DSelectKRouter
from recsys_moe.routers.expert_choice import ExpertChoiceRouter
from recsys_moe.routers.expert_threshold import ExpertThresholdRouter
from recsys_moe.routers.hash import HashRouter
from recsys_moe.routers.kmeans import KMeansRouter
from recsys_moe.routers.loss_free import LossFreeRouter
from recsys_moe.routers.moesart import MoesartRouter
from recsys_moe.routers.pps import PPSRouter
from recsys_moe.routers.relu import ReLURouter
from recsys_moe.routers.settings import KConfig, RouterConfig
from recsys_moe.routers.sinkhorn_base import SinkhornBaseRouter
from recsys_moe.routers.smoe import SMoERouter
from recsys_moe.routers.soft_topk import SoftTopKRouter
from recsys_moe.routers.softmax import SoftmaxRouter
from recsys_moe.routers.sparse_ot import SparseOTRouter
from recsys_moe.routers.sparsemixer import SparseMixerRouter
from recsys_moe.routers.task_masks import CGCRouter, SharedBottomRouter, SingleTaskRouter
from recsys_moe.routers.thor import THORRouter
from recsys_moe.routers.top_p import TopPRouter
from recsys_moe.routers.topk import TopKRouter
from recsys_moe.routers.vmoe import VMoERouter
from recsys_moe.routers.xmoe import XMoERouter

__all__ = [
    "ROUTERS",
    "KConfig",
    "Router",
    "RouterConfig",
    "RouterShape",
    "Routing",
    "find_router",
    "router",
]

_CLASSES: tuple[type[Router], ...] = (
    MoesartRouter,
    PPSRouter,
    SoftmaxRouter,
    TopKRouter,
    VMoERouter,
    SMoERouter,
    ExpertChoiceRouter,
    XMoERouter,
    HashRouter,
    THORRouter,
    DSelectKRouter,
    CometRouter,
    BaseLayerRouter,
    SinkhornBaseRouter,
    SparseOTRouter,
    SoftTopKRouter,
    SharedBottomRouter,
    SingleTaskRouter,
    CGCRouter,
    DefaultMoERouter,
    LossFreeRouter,
    ReLURouter,
    SparseMixerRouter,
    TopPRouter,
    ExpertThresholdRouter,
    KMeansRouter,
)
ROUTERS: dict[str, type[Router]] = {
    cls.Config.model_fields["name"].default: cls for cls in _CLASSES
}


def find_router(name: str) -> type[Router]:
    """The class called `name` in the table, or `package.module:Class` from outside.

    Raises ValueError with the known names when there is none.
    """
    if name in ROUTERS:
        return ROUTERS[name]
    if ":" in name:
        return _import_router(name)
    close = difflib.get_close_matches(name, ROUTERS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(
        f"model.router.name must be one of {', '.join(ROUTERS)} or package.module:Class, "
        f"got {name!r}; {hint}`recsys-moe routers` lists them"
    )


def router(
    name: str,
    *,
    input_dim: int,
    num_experts: int,
    num_users: int = 0,
    task: int = 0,
    num_tasks: int = 1,
    **settings: Any,
) -> Router:
    """A router ready for `MoE`: `router("moesart", input_dim=256, num_experts=16, k=2)`.

    `name`: see `find_router`. `num_users`: known users, for routers that read them (`hash`).
    `task`, `num_tasks`: 0..num_tasks - 1, for routers that divide the experts among tasks (`cgc`).
    `settings`: keys of the router's section (`recsys-moe config show --router NAME` explains
    them). Raises ConfigError, a ValueError, for an unknown name or key, or a value out of range.
    """
    try:
        found = find_router(name)
        config = found.Config.model_validate({**settings, "name": name})
        if min(input_dim, num_experts) < 1:
            sizes = f"{input_dim} and {num_experts}"
            raise ConfigError(f"input_dim and num_experts must be >= 1, got {sizes}")
        if not 0 <= task < num_tasks:
            raise ConfigError(f"task must be in 0..num_tasks - 1 = {num_tasks - 1}, got {task}")
        return found(config, RouterShape(input_dim, num_experts, num_users, task, num_tasks))
    except ValidationError as error:
        raise ConfigError(_in_words(name, found, error)) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _in_words(name: str, found: type[Router], error: ValidationError) -> str:
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else "settings"
    if first["type"] == "extra_forbidden":
        return f"router {name} has no setting {key!r}; {suggestion(key, found.Config.model_fields)}"
    said = first["msg"].removeprefix("Value error, ")
    return f"router {name}: {key}: {said}, got {first['input']!r}"


def _import_router(name: str) -> type[Router]:
    found = import_class("model.router.name", name, "`recsys-moe routers` lists")
    _check_interface(name, found)
    return cast(type[Router], found)


def _check_interface(name: str, found: object) -> None:
    """Raise ValueError unless `found` is a complete router class."""
    key, base = "model.router.name", "recsys_moe.routers.Router"
    if not (isinstance(found, type) and issubclass(found, Router)):
        raise not_derived(key, name, found, base)
    needs = {
        "a `forward`": not found.__abstractmethods__,
        "a `Config` derived from RouterConfig": _has_config(found),
        "a one-line `summary`": isinstance(getattr(found, "summary", None), str),
    }
    refuse_missing(key, name, needs, "Router in recsys_moe/routers/base.py")


def _has_config(found: type[Router]) -> bool:
    config = getattr(found, "Config", None)
    return isinstance(config, type) and issubclass(config, RouterConfig)
