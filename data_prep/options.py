"""Checks of the options that a caller passes to prepare()."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from recsys_moe.schema import ConfigError


def one_of(option: str, value: str, allowed: Iterable[str]) -> None:
    """Raises ConfigError, with a suggestion, unless `value` is one of `allowed`."""
    names = list(allowed)
    if value not in names:
        raise ConfigError(
            f"{option} must be one of {', '.join(names)}, got {value!r}{did_you_mean(value, names)}"
        )


def at_least(option: str, value: int, least: int) -> None:
    """Raises ConfigError when `value` is below `least`."""
    if value < least:
        raise ConfigError(f"{option} must be at least {least}, got {value}")


def at_most(option: str, value: int, most: int) -> None:
    """Raises ConfigError when `value` is above `most`."""
    if value > most:
        raise ConfigError(f"{option} must be at most {most}, got {value}")


def did_you_mean(value: str, names: Iterable[str]) -> str:
    """A suggestion to append to a message; empty when nothing is close."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(value.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
