"""Settings renamed since version 0.1. Old names are read for one version, with a warning."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError

from recsys_moe.errors import ConfigError

logger = logging.getLogger(__name__)

RENAMED = {
    "data.unseen_rate": "data.id_dropout",
    "data.fresh_negatives": "data.resample_negatives",
    "data.negative_power": "data.popularity_exponent",
    "data.negative_user_power": "data.user_exponent",
    "data.shuffle_window": "data.shuffle_buffer",
    "model.main_effects": "model.biases",
    "model.skip_rank": "model.bilinear_rank",
    "model.skip_maps": "model.bilinear_diagonal",
    "model.history": "model.item_bag",
    "model.item_history": "model.user_bag",
    "model.history_dim": "model.bag_dim",
    "model.history_levels": "model.bag_levels",
    "model.history_slopes": "model.bag_ratings",
    "model.history_dropout": "model.bag_dropout",
    "optim.gate_rate": "optim.router_lr_multiplier",
    "optim.average": "optim.ema_decay",
    "optim.losses": "optim.loss_normalization",
}
CONVERTED: dict[str, Callable[[bool], bool | str]] = {
    "model.skip_maps": lambda value: not value,
    "model.history_slopes": lambda value: "linear" if value else "levels",
}
"""Boolean value of an old setting -> value of the new one."""


def with_new_names(raw: dict[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """A copy of an unvalidated mapping in which settings have their new names.

    Raises ConfigError where both names of a setting are given.
    """
    result = dict(raw)
    for old, new in RENAMED.items():
        section, key = old.split(".")
        new_key = new.split(".")[1]
        values = result.get(section)
        if not isinstance(values, dict) or key not in values:
            continue
        if new_key in values:
            raise ConfigError(f"{old} is the old name of {new}, got both; remove {old}")
        was = value = values[key]
        if old in CONVERTED:
            value = _converted(old, value)
        if warn:
            before, now = (f"{old}: {was}", f"{new}: {value}") if was != value else (old, new)
            logger.warning(
                "%s is now %s; the old name will be removed in the next version", before, now
            )
        others = {name: one for name, one in values.items() if name != key}
        result[section] = {**others, new_key: value}
    return result


def _converted(old: str, value: Any) -> Any:
    """What is no boolean, as pydantic reads one, stays for the check of the new name to refuse."""
    try:
        return CONVERTED[old](TypeAdapter(bool).validate_python(value))
    except ValidationError:
        return value
