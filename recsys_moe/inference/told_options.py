"""What is told of newcomers, in options of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recsys_moe.errors import ConfigError
from recsys_moe.inference.feature_values import NUMBER
from recsys_moe.inference.newcomers import Unused
from recsys_moe.inference.recommend_files import ID_FILES, read_ids


def parse_features(options: Sequence[str]) -> dict[str, str]:
    """From NAME=VALUE each. Raises ConfigError."""
    features: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--features must be NAME=VALUE, as in age=25, got {option!r}")
        if name in features:
            raise ConfigError(f"--features must give {name!r} once; several categories are A|B")
        features[name] = value
    return features


def parse_history(option: str | None) -> list[str] | dict[str | int | float, float | None]:
    """From ids, ITEM=RATING, or a file of ids. Raises ConfigError and DataError.

    Of an item that comes again the first rating counts, as in training.
    """
    if option is None:
        return []
    if option.endswith(ID_FILES):
        return list(read_ids(Path(option), "item", "--history"))
    parts = [part.strip() for part in option.split(",")]
    if not all(parts):
        raise ConfigError(f"--history must be items with commas between them, got {option!r}")
    pairs = [_rated(part) for part in parts]
    if all(rating is None for _, rating in pairs):
        return parts
    first: dict[str | int | float, float | None] = {}
    for item, rating in pairs:
        first.setdefault(item, rating)
    return first


def _rated(part: str) -> tuple[str | int | float, float | None]:
    """An id with "=" in it is one if no number follows."""
    item, equals, rating = part.rpartition("=")
    if equals and item and NUMBER.fullmatch(rating):
        return item, float(rating)
    return part, None


def unused_lines(unused: Unused) -> list[str]:
    """For people."""
    lines = [
        f"{name}: training has not seen {', '.join(map(repr, values))}: nothing is added for it"
        for name, values in unused.categories.items()
    ]
    if unused.items:
        named = ", ".join(map(str, unused.items[:5])) + (", ..." if len(unused.items) > 5 else "")
        lines.append(f"{len(unused.items)} items of the history are unknown: left out ({named})")
    return lines
