"""Which features are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc

from data_prep.options import one_of
from recsys_moe.schema import RESERVED, ConfigError, FeatureColumn, FeatureKind, Task

Entity = Literal["user", "item", "context"]
OPTIONS: dict[Entity, str] = {
    "user": "--user-feature",
    "item": "--item-feature",
    "context": "--context",
}
READ: dict[FeatureKind, pa.DataType] = {
    "categorical": pa.string(),
    "multi": pa.list_(pa.string()),
    "numeric": pa.float64(),
}
"""Types of the columns with values as they were read."""
SEPARATOR = "|"
ALL = "all"
OPTION = "--features"
"""Of the built-in sources: names with commas between them."""
_SPEC = r"([A-Za-z][A-Za-z0-9_]*):([a-z]+)=(.+)"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A feature that is asked for; nothing is known yet of its size, mean and deviation."""

    entity: Entity
    feature: FeatureColumn
    source: str
    """The column of the files that it is read from."""
    separator: str = SEPARATOR
    """Between the categories of a `multi` cell that is text."""

    @property
    def column(self) -> str:
        return self.feature.column

    @property
    def words(self) -> list[str]:
        """The option that asks for it."""
        kind, sep = self.feature.kind, self.separator
        end = "" if sep == SEPARATOR else f":sep={sep}"
        return [OPTIONS[self.entity], f"{self.feature.name}:{kind}={self.source}{end}"]


def wanted(entity: Entity, name: str, kind: FeatureKind, source: str | None = None) -> Wanted:
    """A feature of a built-in source, read from the column of this name or from `source`."""
    return Wanted(entity=entity, feature=FeatureColumn(name=name, kind=kind), source=source or name)


def of_entity(features: Iterable[Wanted], entity: str) -> tuple[Wanted, ...]:
    return tuple(one for one in features if one.entity == entity)


def parse(entity: Entity, specs: Sequence[str] | None) -> tuple[Wanted, ...]:
    """From NAME:KIND=COLUMN or NAME:multi=COLUMN:sep=TEXT. Raises ConfigError."""
    return tuple(_parse(entity, spec) for spec in specs or ())


def _parse(entity: Entity, spec: str) -> Wanted:
    option = OPTIONS[entity]
    match = re.fullmatch(_SPEC, spec)
    if match is None:
        raise ConfigError(
            f"{option} must be NAME:KIND=COLUMN, as in age:numeric=age or "
            f"genres:multi=genres:sep='|', got {spec!r}"
        )
    name, kind, source = match.groups()
    column, separator = _column(source)
    one_of(f"{option} {name}: KIND", kind, get_args(FeatureKind))
    if separator is not None and kind != "multi":
        raise ConfigError(f"{option} {name}: only kind multi takes sep, got {spec!r}")
    feature = FeatureColumn(name=name, kind=cast(FeatureKind, kind))
    return Wanted(entity=entity, feature=feature, source=column, separator=separator or SEPARATOR)


def _column(source: str) -> tuple[str, str | None]:
    """Of COLUMN or COLUMN:sep=TEXT. Quotes around TEXT are none of it, if the shell left them."""
    column, _, separator = source.partition(":sep=")
    if not (column and separator):
        return source, None
    is_quoted = len(separator) > 2 and separator[0] == separator[-1] and separator[0] in "'\""
    return column, separator[1:-1] if is_quoted else separator


def check_names(features: Sequence[Wanted], tasks: Sequence[Task], weight: str | None) -> None:
    """Raises ConfigError for a repeated or a reserved name.

    Whatever the entities: files and requests for predictions have one column per name. `weight`:
    the column of the split files with the weights, if there are any.
    """
    labels = [name for task in tasks for name in (task.name, f"{task.name}_calibrated")]
    taken = [*RESERVED, *labels, *([] if weight is None else [weight])]
    seen: set[str] = set()
    for one in features:
        name = one.feature.name
        if name in seen:
            raise ConfigError(
                f"{OPTIONS[one.entity]}: feature names must differ, got {name!r} twice; "
                "users, items and context share one set of names"
            )
        if name in taken:
            raise ConfigError(
                f"{OPTIONS[one.entity]}: a feature must not have the name of a task or another "
                f"column ({', '.join(RESERVED)}), got {name!r}; rename it"
            )
        seen.add(name)


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


def features_option(names: str | None) -> str:
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
