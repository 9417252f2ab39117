"""Differences between two resolved configurations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys_moe.config.files import read_config_file
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError

CONFIG_FILE = "config.yaml"
ABSENT = "(none)"
"""Shown for a key that one side lacks, such as one of another router."""


def flat(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """{"a": {"b": 1}} -> ("a.b", 1)"""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differences(a: dict[str, Any], b: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By dotted key {"a": value, "b": value}, without a side that lacks the key."""
    old, new = dict(flat(a)), dict(flat(b))
    return {
        key: {side: values[key] for side, values in (("a", old), ("b", new)) if key in values}
        for key in {**old, **new}
        if (key in old) != (key in new) or old.get(key) != new.get(key)
    }


def read_resolved(source: str) -> dict[str, Any]:
    """The resolved configuration of a YAML file, a shipped config, a run or a model folder.

    Raises ConfigError.
    """
    folder = Path(source)
    file = folder / CONFIG_FILE if folder.is_dir() else folder
    if folder.is_dir() and not file.is_file():
        raise ConfigError(f"{source} has no {CONFIG_FILE}; name a run, a model or a YAML file")
    try:
        raw = read_config_file(str(file))
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("--config ")) from None
    try:
        return parse_config(raw).model_dump(mode="json")
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def shown(difference: dict[str, Any], side: str) -> str:
    """A value as `--set` reads it."""
    if side not in difference:
        return ABSENT
    value = difference[side]
    return value if isinstance(value, str) else json.dumps(value)
