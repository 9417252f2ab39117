"""Which rows are relevant in top-N evaluation. Axis: N rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import Columns
from recsys_moe.errors import ConfigError, DataError, suggestion
from recsys_moe.kinds import KINDS
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema

LEAST = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)")


class NothingRelevantError(DataError):
    """No row of a split is relevant for a known user."""


class Pairs(NamedTuple):
    """Users and items (N,) int64."""

    user: Tensor
    item: Tensor


@dataclass(frozen=True)
class Wanted:
    """Which rows of a split are relevant: label 1 of a task and, if so asked, a least value."""

    task: int
    also: int | None = None
    """The task whose label has to be at least `least`."""
    least: float = 0.0

    def pairs(self, rows: Rows) -> Iterator[Pairs]:
        """Of the relevant rows, chunk by chunk; a label that is missing fulfils nothing."""
        return (Pairs(one.user.long(), one.item.long()) for one in self.requests(rows))

    def requests(self, rows: Rows) -> Iterator[Request]:
        """The same with their contexts."""
        for chunk in rows.chunks():
            yield replace(chunk, history=None).part(self.mask(chunk)).request

    def mask(self, chunk: Columns) -> Tensor:
        """(N,) bool: the relevant ones."""
        wanted_N = chunk.labels[:, self.task] == 1
        if self.also is not None:
            wanted_N &= chunk.labels[:, self.also] >= self.least
        return wanted_N

    def check(self, relevant: Pairs, place: str) -> None:
        """Raises NothingRelevantError naming `place` where there are no pairs."""
        if not len(relevant.user):
            lower = "" if self.also is None else f"ask for less than {self.least:g}, or "
            raise NothingRelevantError(
                f"{place} has no relevant item of a known user; {lower}evaluate a split with such "
                "rows"
            )


def wanted_rows(
    schema: Schema, k: int, task: str | None = None, relevant: str | None = None
) -> Wanted:
    """From `--k 10 --task watch --relevant rating>=4`. Raises ConfigError."""
    items = schema.item.size
    if not 1 <= k <= items:
        raise ConfigError(f"--k must be in 1..{items}, the items of the catalogue, got {k}")
    names = [one.name for one in schema.tasks]
    binary = [one.name for one in schema.tasks if KINDS[one.kind].has_positives]
    if not binary or (task is not None and task not in binary):
        got = f"the model's {', '.join(names)}" if task is None else f"--task {task}"
        known = f"its binary ones: {', '.join(binary)}" if binary else "the model has none"
        raise ConfigError(f"--ranking needs a binary task, got {got}; {known}")
    number = names.index(task or binary[0])
    if relevant is None:
        return Wanted(number)
    also, sign, least = (part.strip() for part in relevant.rpartition(">="))
    if not (sign and LEAST.fullmatch(least)):
        raise ConfigError(f"--relevant must be TASK>=NUMBER, e.g. rating>=4, got {relevant!r}")
    if also not in names:
        raise ConfigError(f"--relevant {relevant}: no task {also!r}; {suggestion(also, names)}")
    return Wanted(number, names.index(also), float(least))
