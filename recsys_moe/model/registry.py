"""The table of models. To add one, write its class in a file here and list it in MODELS."""

from __future__ import annotations

from recsys_moe.errors import suggestion
from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.settings import ModelConfig
from recsys_moe.model.two_tower import TwoTower
from recsys_moe.outside import import_class, not_derived, refuse_missing

MODELS: dict[str, type[Recommender]] = {
    model.Config.model_fields["name"].default: model for model in (MultiTaskMoE, TwoTower)
}
DEFAULT_MODEL = "mtmoe"


def find_model(name: str) -> type[Recommender]:
    """The class called `name` in the table, or `package.module:Class` from outside.

    Raises ValueError with the known names when there is none.
    """
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        return _import_model(name)
    raise ValueError(
        f"model.name must be one of {', '.join(MODELS)} or package.module:Class, got {name!r}; "
        f"{suggestion(name, MODELS)}"
    )


def _import_model(name: str) -> type[Recommender]:
    key, known = "model.name", ", ".join(MODELS)
    found = import_class(key, name, f"{known} are")
    if not (isinstance(found, type) and issubclass(found, Recommender)):
        raise not_derived(key, name, found, "recsys_moe.Recommender")
    config = getattr(found, "Config", None)
    needs = {
        "a `score`": not found.__abstractmethods__,
        "a `Config` derived from ModelConfig": isinstance(config, type)
        and issubclass(config, ModelConfig),
    }
    refuse_missing(key, name, needs, "Recommender in recsys_moe/model/recommender.py")
    return found
