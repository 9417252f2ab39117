"""The studies of the MOESART paper on images: the runs and the figure of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recsys_moe.errors import ConfigError, suggestion

Contender = Mapping[str, Any]
"""`router`, and what it changes of the settings."""


@dataclass(frozen=True)
class Recipe:
    """Contenders times seeds on one data set."""

    makes: str
    """The table or figure of the paper."""
    dataset: str
    contenders: Mapping[str, Contender]
    seeds: int
    """Runs per contender; the paper has 50 for tables and does not say for figures."""
    reading: str
    """What the paper finds."""
    figure: Literal["curves", "inference"] = "curves"
    common: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the data set's protocol for all runs."""

    def contender(self, label: str) -> Contender:
        """The one called `label`, else the router of that name."""
        return self.contenders.get(label, {"router": label})


def _plain(*names: str) -> dict[str, Contender]:
    return {name: {"router": name} for name in names}


def _at(router: str, *counts: int) -> dict[str, Contender]:
    return {f"{router}_{k}": {"router": router, "k": k} for k in counts}


def _moesart(**settings: Any) -> Contender:
    return {"router": "moesart", "router_settings": settings}


RECIPES = {
    "table1": Recipe(
        "Tables 1 and S4, routers",
        "multi_mnist",
        _plain("softmax", "topk", "vmoe", "moesart", "pps"),
        3,
        "moesart has the lowest loss and the highest accuracies. pps is not in the paper; smoe, "
        "expert_choice, xmoe, dselect_k and comet are: --routers.",
    ),
    "s1_strategies": Recipe(
        "Table S1, how MOESART adjusts the drawn logits",
        "multi_mnist",
        {
            **_plain("topk"),
            "moesart_i": _moesart(strategy="i"),
            "moesart_3": _moesart(strategy="3"),
        },
        3,
        "eq. (3), then (i), which without replacement is (ii), then topk.",
    ),
    "fig2_inference": Recipe(
        "Figure 2, losses under sparse and dense inference",
        "svhn",
        _plain("softmax", "moesart", "topk"),
        1,
        "for moesart the losses hardly differ between k experts and all of them; for topk made "
        "dense and softmax made sparse they do. Held-out loss: .251 moesart, .259 softmax, "
        ".282 topk.",
        "inference",
    ),
    "fig3_replacement": Recipe(
        "Figure 3, sampling with and without replacement",
        "svhn",
        {"without": _moesart(replacement=False), "with": _moesart(replacement=True)},
        3,
        "without replacement the loss is lower and steadier.",
    ),
    "fig4_k": Recipe(
        "Figure 4, the number of experts k per example",
        "svhn",
        {**_at("topk", 2, 4, 6), **_at("moesart", 2, 4, 6)},
        3,
        "both routers improve with k, and moesart is ahead at each k.",
    ),
}


def find_recipe(name: str) -> Recipe:
    """Raises ConfigError naming the nearest."""
    if name not in RECIPES:
        raise ConfigError(f"unknown recipe {name!r}; {suggestion(name, RECIPES)}")
    return RECIPES[name]
