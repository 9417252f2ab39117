"""The rows on their way from a source to the writer: read, indexed, and ready to write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.features.fitting import Fitted
from data_prep.features.spec import Wanted
from data_prep.ids import Index, Ints
from recsys_moe.kinds import Binary, Regression
from recsys_moe.schema import EVENT, Distribution, Source, Task, Vocabulary

Floats = NDArray[np.float32]
Nanoseconds = NDArray[np.int32]
UNKNOWN_TIME = int(np.iinfo(np.int64).min)
"""A time that no log has, in memory alone: on disk it is null."""
ALL = slice(None)
WEIGHT = "weight"
"""The column of the split files with the weights of rows."""


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Rows as columns: dense indices, one label column per task, seconds since 1970."""

    user: Index
    item: Index
    labels: dict[str, Floats]
    """Per task; NaN where the label is missing."""
    timestamp: Ints
    """UNKNOWN_TIME where there is none."""
    weight: Floats | None = None
    """Of every row, >= 0; None where the data have none."""
    context: pa.Table | None = None
    """Columns `feature:NAME` of every row; None where the data have none."""
    event: Index | None = None
    """The place, from 0, of the row in its user's timeline; None where the rows have no order."""

    def __len__(self) -> int:
        return len(self.user)

    def take(self, rows: NDArray[np.generic] | slice) -> Examples:
        return joined([self], rows)

    def blocks(self, rows: int) -> Iterator[Examples]:
        """All, so many at a time."""
        return (self.take(slice(start, start + rows)) for start in range(0, len(self), rows))


def taken(table: pa.Table | None, rows: NDArray[np.generic] | slice) -> pa.Table | None:
    """Some rows of a table, if there is one."""
    return None if table is None else table.take(pa.array(np.arange(len(table))[rows]))


def joined(parts: Sequence[Examples], rows: NDArray[np.generic] | slice = ALL) -> Examples:
    """The rows of all parts, one part after the other, or those at `rows` of these.

    One column after the other: all of the rows in memory besides those asked for would be twice
    as much.
    """

    def some(column: list[Any]) -> Any:
        if column[0] is None:
            return None
        return (np.concatenate(column) if len(column) > 1 else column[0])[rows]

    contexts = [part.context for part in parts if part.context is not None]
    return Examples(
        user=some([part.user for part in parts]),
        item=some([part.item for part in parts]),
        labels={name: some([part.labels[name] for part in parts]) for name in parts[0].labels},
        timestamp=some([part.timestamp for part in parts]),
        weight=some([part.weight for part in parts]),
        context=taken(pa.concat_tables(contexts), rows) if contexts else None,
        event=some([part.event for part in parts]),
    )


def unlabelled(user: Ints, item: Ints, like: Examples, task: str, drawn_for: Ints) -> Examples:
    """Sampled negatives as rows: 0 for `task`, every other label missing, a weight of 1.

    `drawn_for`: the row of `like` whose time, event and context each gets; empty where `like` has
    none of them.
    """

    def all_of(value: np.generic) -> Any:
        return np.broadcast_to(value, len(user))  # of one number's size

    return Examples(
        user=user.astype(np.int32),
        item=item.astype(np.int32),
        labels={name: all_of(np.float32(0 if name == task else np.nan)) for name in like.labels},
        timestamp=like.timestamp[drawn_for] if len(drawn_for) else all_of(np.int64(UNKNOWN_TIME)),
        weight=None if like.weight is None else all_of(np.float32(1)),
        context=taken(like.context, drawn_for),
        event=None if like.event is None else like.event[drawn_for],
    )


@dataclass(frozen=True, kw_only=True)
class Raw:
    """What a source read, before any decision: one row per recorded interaction."""

    name: str
    user: pa.Array
    item: pa.Array
    labels: dict[str, Floats]
    timestamp: Ints
    nanoseconds: Nanoseconds | None = None
    """After `timestamp`, for the order of the rows; they are not written. None: there are none."""
    tasks: tuple[Task, ...]
    weight: Floats | None = None
    file: str
    """Name of the file with the rows, for messages."""
    users: pa.Table | None = None
    """What is known of each by column `user`; `items` by column `item`."""
    items: pa.Table | None = None
    context: pa.Table | None = None
    features: tuple[Wanted, ...] = ()
    """Of `users`, `items` and `context`, which have a column `feature:NAME` for each of theirs."""
    sources: tuple[Source, ...] = ()
    report: dict[str, int] = field(default_factory=dict)

    def examples(self, user: Index, item: Index) -> Examples:
        """The rows with the indices of their users and items."""
        return Examples(
            user=user,
            item=item,
            labels=self.labels,
            timestamp=self.timestamp,
            weight=self.weight,
            context=self.context,
        )

    def take(self, rows: Ints, **report: int) -> Raw:
        """Some of the rows; `report` adds to what is reported."""
        return replace(
            self,
            user=self.user.take(pa.array(rows)),
            item=self.item.take(pa.array(rows)),
            labels={name: label[rows] for name, label in self.labels.items()},
            timestamp=self.timestamp[rows],
            nanoseconds=None if self.nanoseconds is None else self.nanoseconds[rows],
            weight=None if self.weight is None else self.weight[rows],
            context=taken(self.context, rows),
            report={**self.report, **report},
        )


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything that goes to disk, in memory."""

    name: str
    protocol: str
    vocabulary: Vocabulary
    tasks: tuple[Task, ...]
    splits: dict[str, Examples]
    users: pa.Table
    """One row per user, by index: `user` and what is known of it; so `items`."""
    items: pa.Table
    seeds: dict[str, int]
    sources: tuple[Source, ...]
    command: str
    report: dict[str, int]
    weighted: bool = False
    """Whether the rows have weights."""
    repeats: bool = False
    """Whether a (user, item) pair may have several rows."""
    trained: tuple[int, int] | None = None
    """With vocabulary `train`: how many users and items have a training row; they come first."""
    negatives: Distribution | None = None
    """How those in the rows were drawn; None where none were."""
    features: tuple[Fitted, ...] = ()
    """Of `users`, `items` and the rows, in this order."""

    @property
    def events(self) -> bool:
        """Whether the rows have places in the timelines of their users."""
        return any(part.event is not None for part in self.splits.values())

    @property
    def more_columns(self) -> list[str]:
        """Of the split files, as the folder's schema names them."""
        return [*[WEIGHT] * self.weighted, *[EVENT] * self.events]


def rating_tasks(low: float, high: float) -> tuple[Task, Task]:
    """Whether the user touched the item, and the rating given; weights as in the paper.

    `low`, `high`: the ends of the scale, both possible ratings.
    """
    return (
        Task(name="watch", kind=Binary.name, column="watch", weight=0.9),
        Task(name="rating", kind=Regression.name, column="rating", weight=0.1, low=low, high=high),
    )


def rating_labels(rating: NDArray[Any]) -> dict[str, Floats]:
    """The labels of both tasks; NaN is a row without a rating."""
    return {
        "watch": (~np.isnan(rating)).astype(np.float32),
        "rating": rating.astype(np.float32),
    }
