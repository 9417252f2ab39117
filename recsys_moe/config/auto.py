"""Settings that the data decide: `auto`, resolved once from schema.json.

A setting that is given stays, and those that depend on it follow.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from recsys_moe.config.auto_order import order_rule
from recsys_moe.config.auto_rules import INSTEAD, RULES, Choice, Facts
from recsys_moe.config.diff import flat
from recsys_moe.config.files import merge, merge_all, nested, router_section, without
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.schema import Schema

logger = logging.getLogger("recsys_moe.fit")

AUTO = "auto"


def choices(schema: Schema, given: dict[str, Any]) -> list[Choice]:
    """The settings that the data of `schema` decide, without those that `given` sections have.

    Raises ConfigError for an unknown router.
    """
    plain = merge(given, nested("model.router", router_section(given)))
    found = {key: value for key, value in flat(plain) if value != AUTO or key not in KEYS}
    facts = Facts(schema, found)
    try:
        for rule in (order_rule, *RULES):
            rule(facts)
    except ConfigError:
        raise
    except (ArithmeticError, TypeError, ValueError):
        parse_config(given)  # says which given value is none
        raise
    return facts.choices


def with_choices(
    raw: dict[str, Any], schema: Schema, *, everything: bool
) -> tuple[dict[str, Any], list[Choice]]:
    """`raw` sections with the choices for every `auto`, and these choices.

    `everything`: a setting that is left out counts as `auto`. Where the data decide nothing, an
    `auto` stands for the default.
    """
    asked = {key for key, value in flat(raw) if value == AUTO and key in KEYS}
    if not (asked or everything):
        return raw, []
    made = [one for one in choices(schema, raw) if everything or one.key in asked]
    router = router_section(raw)
    own = merge(raw, nested("model.router", router)) if router else raw
    for key in sorted(asked - {one.key for one in made}):
        logger.info("%s=auto: nothing to choose for these data, so the default stays", key)
        own = without(own, key)
    found = merge_all([own, *(nested(one.key, one.value) for one in made)])
    _check_known(asked, found)
    return found, made


def _check_known(asked: set[str], found: dict[str, Any]) -> None:
    """Raise ConfigError for an `auto` of a setting that the model or the router does not have."""
    if asked:
        known = {key for key, _ in flat(parse_config(found).model_dump(mode="json"))}
        for key in sorted(asked - known):
            raise ConfigError(f"{key} must be a setting of the model or router, got auto; omit it")


def say(made: Sequence[Choice]) -> None:
    """Log the three that matter most."""
    known = {one.key: one for one in made}
    first = [one.key for one in made if one.why.endswith(INSTEAD)]
    told = [known[key] for key in dict.fromkeys([*first, *TOLD]) if key in known][:3]
    if told:
        logger.info("settings follow the data; `recsys-moe config explain` lists all:")
    for one in told:
        logger.info("  %s", one)


TOLD = (
    *("model.sequence", "model.user_ids", "model.next_item_weight", "model.time_features"),
    *("model.item_bag", "data.resample_negatives", "optim.weight_decay", "model.router.name"),
)
"""What `fit` tells, first ones first."""
_NAMES = {
    "data": (
        "resample_negatives",
        "popularity_exponent",
        "user_exponent",
        "list_prior",
        "tie_rule",
        "events_dropout",
    ),
    "model": (
        *(
            "features",
            "context",
            "item_bag",
            "user_bag",
            "bag_dim",
            "bag_ratings",
            "biases",
            "num_experts",
        ),
        *("sequence", "sequence_length", "sequence_blocks", "sequence_dropout"),
        "sequence_gain",
        *("next_item_weight", "user_ids", "dropout", "time_features"),
        *("embedding_dim", "expert_dim", "tower_dims", "bilinear_rank", "bilinear_diagonal"),
        *("router.name", "router.k", "router.temperature"),
    ),
    "optim": ("lr", "weight_decay", "schedule", "ema_decay", "router_lr_multiplier"),
    "trainer": ("batch_size", "max_epochs", "patience", "monitor", "precision"),
}
KEYS = frozenset(f"{section}.{name}" for section, names in _NAMES.items() for name in names)
"""The settings that may be `auto`."""
