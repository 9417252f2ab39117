"""What the training rows have, and the prepared tables with features fitted to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.features.fitting import Fitted, Noted, fit, note
from data_prep.features.spec import Entity, Wanted, of_entity
from data_prep.rows import Examples, Prepared


@dataclass(frozen=True, kw_only=True)
class Training:
    """Of some training rows; parts add up."""

    has: dict[Entity, NDArray[np.bool_]]
    """By index, whether the user or item has a row."""
    context: tuple[Noted, ...]
    """Of each context feature."""

    @classmethod
    def none(cls, sizes: tuple[int, int], context: Sequence[Wanted]) -> Training:
        """Of no rows; `sizes`: how many users and items there are."""
        user, item = (np.zeros(size, dtype=bool) for size in sizes)
        return cls(has={"user": user, "item": item}, context=(Noted(),) * len(context))

    @classmethod
    def of(cls, rows: Examples, sizes: tuple[int, int], context: Sequence[Wanted]) -> Training:
        found = cls.none(sizes, context)
        found.has["user"][rows.user] = True
        found.has["item"][rows.item] = True
        if rows.context is None:
            return found
        return replace(found, context=tuple(note(rows.context[one.column]) for one in context))

    def __add__(self, other: Training) -> Training:
        has = {entity: known | other.has[entity] for entity, known in self.has.items()}
        pairs = zip(self.context, other.context, strict=True)
        return Training(has=has, context=tuple(one + two for one, two in pairs))


def with_features(prepared: Prepared, wanted: Sequence[Wanted], training: Training) -> Prepared:
    """`prepared`, whose tables of users and items have values as they were read, with indices.

    The rows in its splits too; those of blocks that come later need encoded(). Raises DataError
    for a feature without a value in training.
    """
    if not wanted:
        return prepared
    users, items = (
        [
            fit(one, note(table[one.column].filter(pa.array(training.has[entity]))))
            for one in of_entity(wanted, entity)
        ]
        for entity, table in _tables(prepared).items()
    )
    context = list(map(fit, of_entity(wanted, "context"), training.context))
    return replace(
        prepared,
        splits={name: encoded(part, context) for name, part in prepared.splits.items()},
        users=_encoded(prepared.users, users),
        items=_encoded(prepared.items, items),
        features=(*users, *items, *context),
        report=prepared.report | _without(prepared, wanted),
    )


def encoded(rows: Examples, context: Sequence[Fitted]) -> Examples:
    """The rows with indices and scaled numbers in the columns of their context."""
    if rows.context is None:
        return rows
    return replace(rows, context=_encoded(rows.context, context))


def _encoded(table: Any, features: Sequence[Fitted]) -> Any:
    for one in features:
        name = one.feature.column
        place = table.column_names.index(name)
        table = table.set_column(place, name, one.encode(table[name]))
    return table


def _without(prepared: Prepared, wanted: Sequence[Wanted]) -> dict[str, int]:
    """How many known users and items have no value of any feature."""
    return {
        f"{entity}s_without_features": len(table) - int(pc.sum(_any_value(table, asked)).as_py())
        for entity, table in _tables(prepared).items()
        if (asked := of_entity(wanted, entity))
    }


def _tables(prepared: Prepared) -> dict[Entity, pa.Table]:
    return {"user": prepared.users, "item": prepared.items}


def unused(
    tables: Mapping[str, tuple[pa.Table | None, pa.Array]], wanted: Sequence[Wanted]
) -> dict[str, int]:
    """Ids with a value of some feature that the rows do not have; of each entity table and ids."""
    counts = {}
    for entity, (table, known) in tables.items():
        asked = of_entity(wanted, entity)
        if table is not None and asked:
            ids = table[entity].filter(_any_value(table, asked)).cast(pa.string())
            found = pc.is_in(ids, value_set=known.cast(pa.string()))
            counts[f"unused_{entity}_features"] = len(ids) - int(pc.sum(found).as_py() or 0)
    return counts


def _any_value(table: pa.Table, features: Sequence[Wanted]) -> Any:
    return reduce(pc.or_, [table[one.column].is_valid() for one in features])
