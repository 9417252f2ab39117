"""Relevant and excluded items per user, for top-N evaluation.

Axes: N rows or pairs, U users, I items. Index U and index I are unknown ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.streaming import labelled, open_rows, trained_ids
from recsys_moe.errors import ConfigError, DataError, suggestion
from recsys_moe.kinds import KINDS, Labelled
from recsys_moe.schema import SPLITS, Schema

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
        for chunk in rows.chunks():
            wanted_N = chunk.labels[:, self.task] == 1
            if self.also is not None:
                wanted_N &= chunk.labels[:, self.also] >= self.least
            yield Pairs(chunk.user[wanted_N].long(), chunk.item[wanted_N].long())


@dataclass(frozen=True)
class RankingRows:
    """What a split and those before it say of known users."""

    relevant: Pairs
    """By user. An unknown item is among them, as one that no list can hold, and what is excluded
    is not."""
    excluded: Pairs
    """By user: the positives in `excluded_splits`, each once."""
    excluded_splits: tuple[str, ...]
    labelled: Labelled
    """The rows of the split with a label of the task."""
    positives_I: Tensor
    """Users with a positive training row per item."""
    trained_user_U: Tensor
    trained_item_I: Tensor
    """bool: the id is in a training row."""
    counts: dict[str, int]
    """`items` in the catalogue, `relevant` pairs, and relevant rows that are left out, by why."""

    @cached_property
    def users(self) -> Tensor:
        """Those with a relevant item, ascending."""
        return self.relevant.user.unique()

    def popularity(self, item_N: Tensor) -> Tensor:
        """Share of training users with a positive row of the item; 0 for an unknown item. (N,)"""
        share_I = self.positives_I.double() / max(int(self.trained_user_U.sum()), 1)
        return torch.cat([share_I, share_I.new_zeros(1)])[item_N]

    def excluded_from(self) -> list[int]:
        """Where each user's excluded pairs begin, and where the last one's end. (U + 1)"""
        users = torch.arange(len(self.trained_user_U) + 1)
        places: list[int] = torch.searchsorted(self.excluded.user, users).tolist()
        return places


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


def ranking_rows(
    folder: Path, schema: Schema, split: str, *, wanted: Wanted, most: int
) -> RankingRows:
    """Read the splits of a prepared folder, in memory up to `most` rows.

    Excludes the user's positives of earlier splits: of the training rows and, for the test split,
    of the validation rows. Raises NothingRelevantError.
    """
    before = SPLITS[: SPLITS.index(split)]
    opened = {name: open_rows(folder, schema, name, most) for name in {*before, split, "train"}}
    positives = Wanted(wanted.task)
    train = _distinct(positives.pairs(opened["train"]), schema)
    excluded_N = _distinct((p for name in before for p in positives.pairs(opened[name])), schema)
    relevant, left_out = _relevant(_joined(wanted.pairs(opened[split])), excluded_N, schema)
    if not len(relevant.user):
        lower = "" if wanted.also is None else f"ask for less than {wanted.least:g}, or "
        raise NothingRelevantError(
            f"{folder}/{split} has no relevant item of a known user; "
            f"{lower}evaluate a split with such rows"
        )
    trained_user_U, trained_item_I = trained_ids(opened["train"], schema)
    pairs = _pairs(train, schema)
    return RankingRows(
        relevant=relevant,
        excluded=_pairs(excluded_N, schema),
        excluded_splits=before,
        labelled=_labelled(opened[split], wanted.task, schema),
        positives_I=torch.bincount(pairs.item, minlength=schema.item.size),
        trained_user_U=trained_user_U,
        trained_item_I=trained_item_I,
        counts={"items": schema.item.size, "relevant": len(relevant.user), **left_out},
    )


def _relevant(pairs: Pairs, excluded_N: Tensor, schema: Schema) -> tuple[Pairs, dict[str, int]]:
    """Each known item once per user; every row of an unknown item counts."""
    known_user_N = pairs.user < schema.user.size
    key_N = _keys(Pairs(pairs.user[known_user_N], pairs.item[known_user_N]), schema)
    is_excluded_N = torch.isin(key_N, excluded_N)
    left_N = key_N[~is_excluded_N]
    is_unknown_N = left_N % (schema.item.size + 1) == schema.item.size
    kept_N = torch.cat([left_N[~is_unknown_N].unique(), left_N[is_unknown_N]]).sort().values
    return _pairs(kept_N, schema), {
        "relevant_of_unknown_users": int((~known_user_N).sum()),
        "relevant_excluded": int(is_excluded_N.sum()),
    }


def _joined(parts: Iterable[Pairs]) -> Pairs:
    users, items = zip(*parts, strict=True)
    return Pairs(torch.cat(users), torch.cat(items))


def _keys(pairs: Pairs, schema: Schema) -> Tensor:
    """One number per pair, ascending by user and then item."""
    return pairs.user * (schema.item.size + 1) + pairs.item


def _pairs(key_N: Tensor, schema: Schema) -> Pairs:
    return Pairs(key_N // (schema.item.size + 1), key_N % (schema.item.size + 1))


def _distinct(parts: Iterable[Pairs], schema: Schema) -> Tensor:
    """Keys of the pairs of known users and items, each once, ascending."""
    keys = [torch.empty(0, dtype=torch.long)]
    for pairs in parts:
        known_N = (pairs.user < schema.user.size) & (pairs.item < schema.item.size)
        keys.append(_keys(pairs, schema)[known_N])
    return torch.cat(keys).unique()


def _labelled(rows: Rows, task: int, schema: Schema) -> Labelled:
    """Rows of known users with a label of the task."""
    parts = list(labelled(rows, task))
    whole = Labelled(*(torch.cat(column) for column in zip(*parts, strict=True)))
    known_N = whole.user < schema.user.size
    return Labelled(*(column[known_N] for column in whole))
