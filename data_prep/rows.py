"""The rows on their way from a source to the writer: read, indexed, and ready to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.features.fitting import Fitted
from data_prep.features.spec import Wanted
from data_prep.ids import Ints
from recsys_moe.schema import Source, Task, Vocabulary

Floats = NDArray[np.float32]
UNKNOWN_TIME = 0


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Rows as columns: dense indices, one label column per task, seconds since 1970."""

    user: Ints
    item: Ints
    labels: dict[str, Floats]
    """Per task; NaN where the label is missing."""
    timestamp: Ints
    """UNKNOWN_TIME (0) where there is none."""
    weight: Floats | None = None
    """Of every row, >= 0; None where the data have none."""
    context: pa.Table | None = None
    """Columns `feature:NAME` of every row; None where the data have none."""

    def __len__(self) -> int:
        return len(self.user)

    def take(self, rows: NDArray[np.generic] | slice) -> Examples:
        return Examples(
            user=self.user[rows],
            item=self.item[rows],
            labels={name: label[rows] for name, label in self.labels.items()},
            timestamp=self.timestamp[rows],
            weight=None if self.weight is None else self.weight[rows],
            context=taken(self.context, rows),
        )


def taken(table: pa.Table | None, rows: NDArray[np.generic] | slice) -> pa.Table | None:
    """Some rows of a table, if there is one."""
    return None if table is None else table.take(pa.array(np.arange(len(table))[rows]))


def joined(parts: Sequence[Examples]) -> Examples:
    """The rows of all parts, one part after the other."""
    names = parts[0].labels
    return Examples(
        user=np.concatenate([part.user for part in parts]),
        item=np.concatenate([part.item for part in parts]),
        labels={name: np.concatenate([part.labels[name] for part in parts]) for name in names},
        timestamp=np.concatenate([part.timestamp for part in parts]),
        weight=None
        if parts[0].weight is None
        else np.concatenate([part.weight for part in parts if part.weight is not None]),
        context=None
        if parts[0].context is None
        else pa.concat_tables([part.context for part in parts]),
    )


def unlabelled(user: Ints, item: Ints, like: Examples, task: str) -> Examples:
    """Sampled negatives as rows: 0 for `task`, every other label missing, a weight of 1.

    They have no context, which is why it is refused where negatives are drawn.
    """
    labels = {name: np.full(len(user), np.nan, dtype=np.float32) for name in like.labels}
    labels[task] = np.zeros(len(user), dtype=np.float32)
    time = np.full(len(user), UNKNOWN_TIME, dtype=np.int64)
    weight = None if like.weight is None else np.ones(len(user), dtype=np.float32)
    return Examples(user=user, item=item, labels=labels, timestamp=time, weight=weight)


@dataclass(frozen=True, kw_only=True)
class Raw:
    """What a source read, before any decision: one row per recorded interaction."""

    name: str
    user: pa.Array
    item: pa.Array
    labels: dict[str, Floats]
    timestamp: Ints
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

    def examples(self, user: Ints, item: Ints) -> Examples:
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
    """One row per known user, by index: `user` and what is known of it; so `items`."""
    items: pa.Table
    seeds: dict[str, int]
    sources: tuple[Source, ...]
    command: str
    report: dict[str, int]
    weighted: bool = False
    """Whether the rows have weights."""
    repeats: bool = False
    """Whether a (user, item) pair may have several rows."""
    features: tuple[Fitted, ...] = ()
    """Of `users`, `items` and the rows, in this order."""
