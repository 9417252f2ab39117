"""Relevant and excluded items per user, for top-N evaluation.

Axes: N rows or pairs, U users, I items. Index U and index I are unknown ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import History
from recsys_moe.data.streaming import labelled, open_rows, trained_ids
from recsys_moe.inference.evaluation.ranking_history import Before, before
from recsys_moe.inference.evaluation.ranking_pairs import (
    distinct,
    in_contexts,
    joined,
    pairs_of,
    relevant_pairs,
    unique_with_context,
)
from recsys_moe.inference.evaluation.ranking_successive import Successive, successive
from recsys_moe.inference.evaluation.ranking_wanted import Pairs, Wanted
from recsys_moe.kinds import Labelled
from recsys_moe.model.request import Request, of_users
from recsys_moe.schema import SPLITS, FeatureColumn, Schema


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
    context: Tensor | None = None
    """Of each relevant pair, (N, C); a user has a list in each context with a relevant item."""
    labelled_context: Tensor | None = None
    """Of each row of `labelled`, (N, C)."""
    before: Before | None = None
    """What lists and rows see of the past, of models that read it."""
    successive: Successive | None = None
    """Where each relevant row has a list of its own."""

    @property
    def lists(self) -> Request:
        """What each list is asked for: users with a relevant item, ascending, and the context;
        without the events, see `asked`."""
        return self._lists[0]

    @property
    def list_of_pair(self) -> Tensor:
        """Index of the list of each relevant pair. (N,)"""
        return self._lists[1]

    @property
    def users(self) -> Tensor:
        """The user of each list."""
        return self.lists.user

    def asked(self, some: slice) -> Request:
        """Some of the lists, with the events that a model reads."""
        lists = self.lists.take(some)
        if self.before is None:
            return lists
        events, moment = self.before.of_lists(self.users, some)
        return lists._replace(events=events, moment=moment)

    def excluded_items(self, number: int) -> Tensor:
        """Of a list."""
        if self.successive is not None:
            return self.successive.excluded(number)
        user = int(self.users[number])
        return self.excluded.item[self._excluded_from[user] : self._excluded_from[user + 1]]

    @cached_property
    def _lists(self) -> tuple[Request, Tensor]:
        user_N, context_NC = self.relevant.user, self.context
        if self.successive is not None:
            lists = of_users(user_N)._replace(context=context_NC)
            return lists, torch.arange(len(user_N))
        if context_NC is None:
            user_L, list_N = user_N.unique(return_inverse=True)
            return of_users(user_L), list_N
        user_L1, context_LC, list_N = unique_with_context(user_N[:, None], context_NC)
        return of_users(user_L1[:, 0])._replace(context=context_LC), list_N

    def only(self, kept_N: Tensor) -> RankingRows:
        """With some of the relevant items, and the lists that have one."""
        relevant = Pairs(self.relevant.user[kept_N], self.relevant.item[kept_N])
        context = None if self.context is None else self.context[kept_N]
        in_turn, past = self.successive, self.before
        if in_turn is not None:
            in_turn = in_turn.only(kept_N)
            past = past if past is None else past.of(in_turn)
        found = replace(self, relevant=relevant, context=context)
        return replace(found, successive=in_turn, before=past)

    def popularity(self, item_N: Tensor) -> Tensor:
        """Share of training users with a positive row of the item; 0 for an unknown item. (N,)"""
        share_I = self.positives_I.double() / max(int(self.trained_user_U.sum()), 1)
        return torch.cat([share_I, share_I.new_zeros(1)])[item_N]

    @cached_property
    def _excluded_from(self) -> list[int]:
        """Where each user's excluded pairs begin, and where the last one's end. (U + 1)"""
        users = torch.arange(len(self.trained_user_U) + 1)
        places: list[int] = torch.searchsorted(self.excluded.user, users).tolist()
        return places


def ranking_rows(
    folder: Path,
    schema: Schema,
    split: str,
    *,
    wanted: Wanted,
    most: int,
    context: Sequence[FeatureColumn] = (),
    history: History | None = None,
    seen: History | None = None,
    only_last: bool = False,
) -> RankingRows:
    """Read the splits of a prepared folder, in memory up to `most` rows. `context`, `history`: what
    the model reads. A list sees what was before the user's first relevant row.

    Excludes the user's positives of earlier splits: of the training rows and, for the test split,
    of the validation rows. With `seen`, which tells what was before a row, each relevant row has a
    list of its own, without what its user had before; `only_last`: only each user's last one.
    Raises NothingRelevantError.
    """
    earlier = SPLITS[: SPLITS.index(split)]
    read: dict[str, Any] = {"context": context, "history": history}
    opened = {
        name: open_rows(folder, schema, name, most, **(read if name == split else {}))
        for name in {*earlier, split, "train"}
    }
    positives = Wanted(wanted.task)
    train = distinct(positives.pairs(opened["train"]), schema)
    excluded_N = distinct((p for name in earlier for p in positives.pairs(opened[name])), schema)
    if seen is None:
        found = _relevant(opened[split], wanted, excluded_N, schema, in_context=bool(context))
    else:
        whole = open_rows(folder, schema, split, most, history=seen)
        found = _in_turn(successive(opened[split], whole, wanted, schema, only_last=only_last))
    wanted.check(found.pairs, f"{folder}/{split}")
    trained_user_U, trained_item_I = trained_ids(opened["train"], schema)
    pairs = pairs_of(train, schema)
    asked, asked_context = _labelled(opened[split], wanted.task, schema)
    return RankingRows(
        relevant=found.pairs,
        excluded=pairs_of(excluded_N, schema),
        excluded_splits=earlier,
        labelled=asked,
        positives_I=torch.bincount(pairs.item, minlength=schema.item.size),
        trained_user_U=trained_user_U,
        trained_item_I=trained_item_I,
        counts={"items": schema.item.size, "relevant": len(found.pairs.user), **found.left_out},
        context=found.context,
        labelled_context=asked_context,
        before=_before(opened[split], wanted, history, schema, found.successive),
        successive=found.successive,
    )


class _Relevant(NamedTuple):
    """Relevant pairs, how many are left out by why, and the fields of RankingRows beside them."""

    pairs: Pairs
    left_out: dict[str, int]
    context: Tensor | None = None
    successive: Successive | None = None


def _relevant(
    rows: Rows, wanted: Wanted, excluded_N: Tensor, schema: Schema, *, in_context: bool
) -> _Relevant:
    pairs, left_out = relevant_pairs(joined(wanted.pairs(rows)), excluded_N, schema)
    if not in_context:
        return _Relevant(pairs, left_out)
    pairs, context_NC = in_contexts([*wanted.requests(rows)], excluded_N, schema)
    return _Relevant(pairs, left_out, context_NC)


def _in_turn(lists: Successive) -> _Relevant:
    """Each relevant row, with a list of its own."""
    pairs = Pairs(lists.rows.user.long(), lists.rows.item.long())
    left_out = {"relevant_of_unknown_users": lists.left_out, "relevant_excluded": 0}
    return _Relevant(pairs, left_out, lists.rows.context, lists)


def _before(
    rows: Rows,
    wanted: Wanted,
    history: History | None,
    schema: Schema,
    in_turn: Successive | None,
) -> Before | None:
    if history is None:
        return None
    found = before(rows, wanted, history, schema)
    return found if in_turn is None else found.of(in_turn)


def _labelled(rows: Rows, task: int, schema: Schema) -> tuple[Labelled, Tensor | None]:
    """Rows of known users with a label of the task, and their contexts."""
    parts = list(labelled(rows, task))
    whole = Labelled(*(torch.cat(column) for column in zip(*parts, strict=True)))
    known_N = whole.user < schema.user.size
    contexts = []
    for chunk in rows.chunks():
        if chunk.context is not None:
            contexts.append(chunk.context[~chunk.labels[:, task].isnan()])
    context_NC = torch.cat(contexts)[known_N] if contexts else None
    return Labelled(*(column[known_N] for column in whole)), context_NC
