"""Cold-start users from command-line options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recsys_moe.errors import ConfigError
from recsys_moe.inference.cold_start.features import RawHistory, history_of
from recsys_moe.inference.cold_start.whom import Unused
from recsys_moe.inference.files.recommend import names_ids_file, read_ids


def parse_features(
    options: Sequence[str], option: str = "--features", example: str = "age=25"
) -> dict[str, str]:
    """From NAME=VALUE each. Raises ConfigError, which names `option`."""
    features: dict[str, str] = {}
    for given in options:
        name, equals, value = given.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{option} must be NAME=VALUE, as in {example}, got {given!r}")
        if name in features:
            several = "pass several categories as A|B" if option == "--features" else "omit one"
            raise ConfigError(f"{option} must name {name!r} once; {several}")
        features[name] = value
    return features


def parse_history(option: str | None) -> RawHistory:
    """From ids, ITEM=RATING, or a file of ids. Raises ConfigError and DataError.

    The first rating of a repeated item counts, as in training.
    """
    if option is None:
        return []
    if names_ids_file(option):
        return list(read_ids(Path(option), "item", "--history"))
    parts = [part.strip() for part in option.split(",")]
    if not all(parts):
        raise ConfigError(f"--history must be comma-separated items, got {option!r}")
    return history_of(parts)


def unused_lines(unused: Unused) -> list[str]:
    """As log lines."""
    lines = [
        f"ignored unknown categories of {name}: {', '.join(map(repr, values))}"
        for name, values in unused.categories.items()
    ]
    if unused.items:
        lines.append(f"ignored unknown items of the history: {_named(unused.items)}")
    if unused.repeated:
        lines.append(f"ignored repeated items of the history: {_named(unused.repeated)}")
    return lines


def _named(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:5])) + (f", ... ({len(items)})" if len(items) > 5 else "")
