"""The table of methods that weigh tasks. To add one, write its class in a file here and list it.

A method is chosen by `tasks.weighting`; `fixed`, which learns nothing, has no class.
"""

from __future__ import annotations

from typing import Any

from recsys_moe.errors import suggestion
from recsys_moe.model.weighting.base import Step, Weighting, WeightingConfig
from recsys_moe.model.weighting.famo import FAMOWeighting
from recsys_moe.model.weighting.gradnorm import GradNormWeighting
from recsys_moe.model.weighting.pcgrad import PCGradWeighting
from recsys_moe.model.weighting.uncertainty import UncertaintyWeighting

__all__ = [
    "CONFIGS",
    "METHODS",
    "FixedConfig",
    "Step",
    "Weighting",
    "WeightingConfig",
    "weighting_config",
]

METHODS: dict[str, type[Weighting]] = {
    method.Config.model_fields["name"].default: method
    for method in (UncertaintyWeighting, GradNormWeighting, PCGradWeighting, FAMOWeighting)
}


class FixedConfig(WeightingConfig):
    """Settings of `fixed`: none."""

    name: str = "fixed"


CONFIGS: dict[str, type[WeightingConfig]] = {
    "fixed": FixedConfig,
    **{name: method.Config for name, method in METHODS.items()},
}


def weighting_config(value: Any) -> WeightingConfig:
    """Settings from a name or a mapping with one. Raises ValueError."""
    if isinstance(value, WeightingConfig):
        return value
    if isinstance(value, str):
        value = {"name": value}
    name = value.get("name", "fixed") if isinstance(value, dict) else value
    if str(name) not in CONFIGS:
        raise ValueError(
            f"tasks.weighting must be one of {', '.join(CONFIGS)}, got {name!r}; "
            f"{suggestion(str(name), CONFIGS)}"
        )
    return CONFIGS[str(name)].model_validate({**value, "name": str(name)})
