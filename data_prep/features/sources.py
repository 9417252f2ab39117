"""Features of the built-in sources: which are chosen, and their columns as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_prep.features.spec import READ, Wanted, of_entity
from data_prep.options import one_of
from recsys_moe.schema import ConfigError

ALL = "all"
OPTION = "--features"


def chosen(names: str | None, offered: Sequence[Wanted]) -> tuple[Wanted, ...]:
    """By names with commas between them, or all that are offered; None chooses none.

    In the order of the offer. Raises ConfigError.
    """
    if names is None:
        return ()
    if names == ALL:
        return tuple(offered)
    asked = [name.strip() for name in names.split(",")]
    for name in asked:
        one_of(OPTION, name, (ALL, *(one.feature.name for one in offered)))
        if name == ALL or asked.count(name) > 1:
            raise ConfigError(f"{OPTION} must be {ALL} or distinct names, got {names!r}")
    return tuple(one for one in offered if one.feature.name in asked)


def command(names: str | None) -> str:
    """What to add to the command on record."""
    return "" if names is None else f" {OPTION} {names}"


def as_read(table: pa.Table, entity: str, features: Sequence[Wanted]) -> pa.Table:
    """`table` with a column `feature:NAME` for each of the entity, from its
    source."""
    for one in of_entity(features, entity):
        table = table.append_column(one.column, _as_read(table[one.source], one))
    return table


def _as_read(cells: Any, one: Wanted) -> Any:
    if one.feature.kind == "numeric":
        return cells.cast(READ["numeric"])
    text = cells.cast(pa.string())
    text = pc.if_else(pc.equal(pc.utf8_trim_whitespace(text), ""), None, text)
    if one.feature.kind == "categorical":
        return text
    return pc.split_pattern(text, one.separator)
