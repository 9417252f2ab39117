"""The one table of routers. To add one: write its class in a file here and list it in ROUTERS."""

from __future__ import annotations

import difflib
import importlib

from recsys_moe.routers.base import Router, RouterConfig, RouterShape, Routing
from recsys_moe.routers.base_layer import BaseLayerRouter
from recsys_moe.routers.comet import CometRouter
from recsys_moe.routers.dselect_k import DSelectKRouter
from recsys_moe.routers.expert_choice import ExpertChoiceRouter
from recsys_moe.routers.hash import HashRouter
from recsys_moe.routers.moesart import MoesartRouter
from recsys_moe.routers.sinkhorn_base import SinkhornBaseRouter
from recsys_moe.routers.smoe import SMoERouter
from recsys_moe.routers.soft_topk import SoftTopKRouter
from recsys_moe.routers.softmax import SoftmaxRouter
from recsys_moe.routers.sparse_ot import SparseOTRouter
from recsys_moe.routers.thor import THORRouter
from recsys_moe.routers.topk import TopKRouter
from recsys_moe.routers.vmoe import VMoERouter
from recsys_moe.routers.xmoe import XMoERouter

__all__ = ["ROUTERS", "Router", "RouterConfig", "RouterShape", "Routing", "find_router"]

_CLASSES: tuple[type[Router], ...] = (
    MoesartRouter,
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


def _import_router(name: str) -> type[Router]:
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"model.router.name {name!r} cannot be imported: {error}; "
            "is its package installed or on PYTHONPATH?"
        ) from None
    if not (isinstance(found, type) and issubclass(found, Router)):
        raise ValueError(
            f"model.router.name {name!r} must be a subclass of recsys_moe.routers.Router"
        )
    return found
