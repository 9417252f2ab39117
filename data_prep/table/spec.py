"""The options of `prepare table`: columns, features and tasks of a table."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from data_prep import ids
from data_prep.features.spec import Wanted, of_entity
from data_prep.ids import Ints
from data_prep.options import one_of
from data_prep.read.bad_rows import OPTION
from data_prep.split.negatives import Negatives
from data_prep.split.splits import MOVIELENS, Holdout
from data_prep.table.frame import Place
from recsys_moe.cells import Unit
from recsys_moe.encodings import UTF8
from recsys_moe.kinds import KINDS, positive_task
from recsys_moe.schema import ConfigError, DataError, Distribution, Task

Duplicates = Literal["error", "first", "last", "keep"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for, whatever the engine."""

    user: str
    """Column in the files, as `item`, `timestamp` and `weight`."""
    item: str
    tasks: tuple[tuple[Task, str | None], ...]
    """With the columns of their labels; None: every row is a positive."""
    timestamp: str | None
    timestamp_unit: Unit
    """`auto`: by the size of the numbers."""
    day_first: bool
    """Whether dates may be like 31/1/2024 too."""
    encoding: str
    """Of all files in text."""
    weight: str | None
    items: Place | None
    """The file with more about the items."""
    user_features: Place | None
    """The file with the features of users, by the column `user`; so `item_features`."""
    item_features: Place | None
    features: tuple[Wanted, ...]
    negatives: Literal["none", "per-user"]
    negative_ratio: float
    negative_distribution: Distribution
    fractions: str | None
    duplicates: Duplicates
    skip_bad_rows: bool
    protocol: str
    seed: int

    @property
    def columns(self) -> list[str]:
        """What to read from every file."""
        named = [self.user, self.item, *(column for _, column in self.tasks)]
        more = [self.timestamp, self.weight]
        more += [one.source for one in self.context]
        return list(dict.fromkeys(column for column in named + more if column is not None))

    @property
    def context(self) -> tuple[Wanted, ...]:
        """Features of single rows."""
        return of_entity(self.features, "context")

    @property
    def to_draw(self) -> Negatives | None:
        """The negatives of the first task that has positives; None draws none."""
        number = positive_task(task for task, _ in self.tasks)
        if number is None or self.negatives == "none":
            return None
        return Negatives(
            task=self.tasks[number][0].name,
            ratio=self.negative_ratio,
            distribution=self.negative_distribution,
        )

    @property
    def holdout(self) -> Holdout:
        """Shares of the splits. Raises ConfigError."""
        return Holdout.of(self.fractions, MOVIELENS)

    @property
    def command(self) -> str:
        """The command without places, so that equal input gives equal bytes."""
        words = ["prepare", "table", "--user", self.user, "--item", self.item]
        for task, column in self.tasks:
            label = "" if column is None else f"={column}"
            words += ["--task", f"{task.name}:{task.kind}{label}"]
        words += _option("--timestamp", self.timestamp)
        words += _option("--timestamp-unit", self.timestamp_unit, "auto")
        words += ["--day-first"] if self.day_first else []
        words += _option("--encoding", self.encoding, UTF8)
        words += _option("--weight", self.weight)
        words += [word for one in self.features for word in one.words]
        words += ["--negatives", self.negatives]
        words += _option("--negative-ratio", f"{self.negative_ratio:g}", "1")
        words += _option("--negative-distribution", self.negative_distribution, "uniform")
        words += _option("--fractions", self.fractions)
        words += ["--duplicates", self.duplicates]
        words += [OPTION] if self.skip_bad_rows else []
        return shlex.join([*words, "--protocol", self.protocol, "--seed", str(self.seed)])

    @property
    def side_files(self) -> list[Place]:
        """Files of items and features, each once."""
        given = [self.items, self.user_features, self.item_features]
        return list(dict.fromkeys(path for path in given if path is not None))

    def distinct(self, pairs: Ints, repeated: Callable[[int], str]) -> Ints:
        """Rows to keep, ascending, given the (user, item) pair of each as a number.

        Raises DataError for --duplicates error, with what `repeated` says of the first such row.
        """
        if self.duplicates == "keep":
            return np.arange(len(pairs))
        rows = ids.one_per_value(pairs, last=self.duplicates == "last")
        if self.duplicates == "error" and len(rows) < len(pairs):
            again = int(np.setdiff1d(np.arange(len(pairs)), rows)[0])
            raise DataError(f"{repeated(again)}; pass --duplicates first, last or keep")
        return rows


def _option(name: str, value: str | None, default: str | None = None) -> list[str]:
    return [] if value is None or value == default else [name, value]


def parse_tasks(specs: Sequence[str]) -> tuple[tuple[Task, str | None], ...]:
    """Tasks and the columns of their labels; every task weighs the same."""
    if not specs:
        raise ConfigError("--task must be given at least once, as in --task watch:binary=clicked")
    return tuple(_task(spec, 1 / len(specs)) for spec in specs)


def _task(spec: str, weight: float) -> tuple[Task, str | None]:
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9_]*):([a-z]+)(?:=(.+))?", spec)
    if match is None:
        raise ConfigError(
            f"--task must be NAME:KIND=COLUMN, as in watch:binary=clicked, got {spec!r}"
        )
    name, kind, column = match.groups()
    one_of(f"--task {name}: KIND", kind, KINDS)
    if not KINDS[kind].has_positives and column is None:
        raise ConfigError(f"--task {spec} needs the column of its labels, as in {spec}=COLUMN")
    return Task(name=name, kind=kind, column=name, weight=weight), column
