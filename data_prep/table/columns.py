"""Columns of a user's table as ids, labels and weights; a wrong cell is named with its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.ids import Ints
from data_prep.read.bad_rows import BadRows
from data_prep.rows import WEIGHT, Examples
from data_prep.table.cells import Cells, feature_values, ids, one_line
from data_prep.table.files import TableFile
from data_prep.table.spec import Request
from data_prep.table.spelling import Spelled, spelled
from data_prep.table.times import timestamps
from recsys_moe.cells import SWITCHES, numbers
from recsys_moe.kinds import KINDS, MOST_LEVELS, Kind
from recsys_moe.schema import FEATURE, DataError, Task

NANOSECONDS = "nanoseconds"
LABEL = "label "
"""Begins the names of the columns with labels, so that a task may have any name."""

ANSWERS = {"yes": "1", "no": "0"}
"""What labels of 0 and 1 may be besides SWITCHES, in any case."""


class Rows(NamedTuple):
    """The usable rows of a file."""

    file: TableFile
    rows: pa.Table
    place: Ints
    """Where in the file they are."""
    spelled: tuple[Spelled, Spelled]
    """The ids of users and of items."""


def rows(file: TableFile, request: Request, bad: BadRows) -> Rows:
    """The rows without a wrong cell.

    `user` and `item` as text, "label NAME" for every task, `timestamp`; `nanoseconds` where rows
    may have an order; `weight` and the context, "feature:NAME", if there is.
    """
    cells = Cells(file, bad)
    times = timestamps(cells, request.timestamp, request.timestamp_unit, request.day_first)
    found = {
        "user": ids(cells, request.user),
        "item": ids(cells, request.item),
        **{LABEL + t.name: _labels(cells, column, KINDS[t.kind]) for t, column in request.tasks},
        "timestamp": times.seconds,
    }
    if request.protocol != "hash":
        found[NANOSECONDS] = times.nanoseconds
    if request.weight is not None:
        found[WEIGHT] = weights(cells, request.weight)
    found |= feature_values(cells, request.context)
    names = {"user": request.user, "item": request.item}
    users, items = (spelled(cells, name, found[entity]) for entity, name in names.items())
    table = pa.table(found)
    usable = table if cells.good.all() else table.filter(cells.good)
    return Rows(file, usable, np.flatnonzero(cells.good), (users, items))


def values_of(rows: pa.Table) -> dict[str, Any]:
    """Labels by task, times, weights and context of what rows() gave, as `Examples` has them."""
    names = [name for name in rows.column_names if name.startswith(LABEL)]
    context = [name for name in rows.column_names if name.startswith(FEATURE)]
    return {
        "labels": {name.removeprefix(LABEL): rows[name].to_numpy() for name in names},
        "timestamp": rows["timestamp"].to_numpy(),
        "weight": rows[WEIGHT].to_numpy() if WEIGHT in rows.column_names else None,
        "context": rows.select(context) if context else None,
    }


def table_of(rows: Examples) -> pa.Table:
    """`rows` with their indices, as values_of() reads them."""
    columns: dict[str, Any] = {
        "user": rows.user,
        "item": rows.item,
        "timestamp": rows.timestamp,
    }
    for name, label in rows.labels.items():
        columns[LABEL + name] = label
    if rows.weight is not None:
        columns[WEIGHT] = rows.weight
    if rows.context is not None:
        columns |= zip(rows.context.column_names, rows.context.columns, strict=True)
    return pa.table(columns)


def with_classes(rows: pa.Table, tasks: Sequence[Task]) -> tuple[pa.Table, tuple[Task, ...]]:
    """Names of classes as their numbers, and the tasks with their classes: in alphabetical order
    or, if all are whole numbers, in that of numbers. Raises DataError for too many."""
    named = []
    for task in tasks:
        if not KINDS[task.kind].reads_text:
            named.append(task)
            continue
        place = rows.column_names.index(LABEL + task.name)
        names = pc.unique(rows[place]).drop_null().to_pylist()
        if not 2 <= len(names) <= MOST_LEVELS:
            raise DataError(
                f"labels of {task.name} must have 2 to {MOST_LEVELS} classes, got {len(names)}; "
                "join rare ones, or learn another column"
            )
        are_numbers = all(name.isascii() and name.lstrip("-").isdigit() for name in names)
        are_numbers &= not any(name.startswith("--") for name in names)
        names = sorted(names, key=lambda name: (int(name) if are_numbers else 0, name))
        numbers = pc.index_in(rows[place], pa.array(names)).cast(pa.float32())
        rows = rows.set_column(place, LABEL + task.name, numbers)
        named.append(replace(task, classes=tuple(names)))
    return rows, tuple(named)


def _class_names(cells: Cells, column: str) -> pa.Array:
    """Text, null where the cell is empty. Raises DataError for a line break."""
    raw = cells.flat(column)
    text = raw
    if pa.types.is_floating(raw.type):  # 1.0 is class 1
        number, wrong = numbers(raw)
        wrong |= ~np.isnan(number) & (number.round() != number)
        cells.refuse(wrong, raw, column, rule="be whole or text (or empty, if missing)")
        text = pa.array(np.where(wrong, np.nan, number), from_pandas=True).cast(pa.int64())
    text = pc.utf8_trim_whitespace(text.cast(pa.string()))
    one_line(cells, text, raw, column)
    return pc.if_else(pc.equal(text, ""), None, text)


def _labels(cells: Cells, column: str | None, kind: Kind) -> Any:
    """float32, NaN where the cell is empty; without a column every row is a positive. For kinds
    with classes their names.

    Raises DataError for a label that `kind` excludes.
    """
    if column is None:
        return np.ones(len(cells.good), dtype=np.float32)
    if kind.reads_text:
        return _class_names(cells, column)
    words = SWITCHES | ANSWERS if kind.has_positives else SWITCHES
    raw, (number, wrong) = cells.read(column, partial(numbers, words=words))
    wrong |= ~np.isnan(number) & kind.invalid(number)
    rule, remedy = f"be {kind.rule} (or empty, if missing)", kind.remedy.format(column=column)
    cells.refuse(wrong, raw, column, rule=rule, remedy=remedy)
    return np.where(wrong, np.nan, number).astype(np.float32)


def weights(cells: Cells, column: str) -> NDArray[np.float32]:
    """float32, 1 where the cell is empty. Raises DataError for an invalid weight."""
    raw, (number, wrong) = cells.read(column, numbers)
    wrong |= ~np.isnan(number) & ~((number >= 0) & (number <= np.finfo(np.float32).max))
    cells.refuse(wrong, raw, column, rule="be a finite number >= 0 (or empty, which counts as 1)")
    return np.where(wrong | np.isnan(number), 1, number).astype(np.float32)
