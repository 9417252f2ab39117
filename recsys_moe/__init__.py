"""Multi-task recommenders with a sparse mixture of experts. Importing this costs nothing."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # importing typing takes longer than all the rest
if TYPE_CHECKING:
    from typing import Any

    from data_prep.prepare import prepare
    from recsys_moe.inference.predictor import ColdItem, ColdUser, Event, EventStore, Predictor
    from recsys_moe.model.experts import Experts
    from recsys_moe.model.modules import mix
    from recsys_moe.model.moe import MoE
    from recsys_moe.model.output import Output
    from recsys_moe.model.recommender import Recommender
    from recsys_moe.model.request import Request
    from recsys_moe.model.settings import ModelConfig
    from recsys_moe.model.shape import ModelShape
    from recsys_moe.routers import Router, Routing, router
    from recsys_moe.train.from_python import fit
    from recsys_moe.train.loader import RecDataModule
    from recsys_moe.train.module import RecModule
    from recsys_moe.train.save_model import save_model

__version__ = "0.1.0"
__all__ = [
    "ColdItem",
    "ColdUser",
    "Event",
    "EventStore",
    "Experts",
    "MoE",
    "ModelConfig",
    "ModelShape",
    "Output",
    "Predictor",
    "RecDataModule",
    "RecModule",
    "Recommender",
    "Request",
    "Router",
    "Routing",
    "fit",
    "mix",
    "prepare",
    "router",
    "save_model",
]

_HOMES = {
    "ColdItem": "inference.predictor",
    "ColdUser": "inference.predictor",
    "Event": "inference.predictor",
    "EventStore": "inference.predictor",
    "Experts": "model.experts",
    "MoE": "model.moe",
    "ModelConfig": "model.settings",
    "ModelShape": "model.shape",
    "Output": "model.output",
    "Predictor": "inference.predictor",
    "RecDataModule": "train.loader",
    "RecModule": "train.module",
    "Recommender": "model.recommender",
    "Request": "model.request",
    "Router": "routers",
    "Routing": "routers",
    "fit": "train.from_python",
    "mix": "model.modules",
    "prepare": "data_prep.prepare",
    "router": "routers",
    "save_model": "train.save_model",
}
"""Where each public name lives; it is imported when somebody asks for it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    module = home if home.startswith("data_prep.") else f"{__name__}.{home}"
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
