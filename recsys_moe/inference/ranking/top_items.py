"""The best items of a catalogue for each user, by the prediction of a task or a product of two."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.data.streaming import ITEM_ROWS
from recsys_moe.inference.cold_start.model import ColdStartVectors, with_cold_users
from recsys_moe.inference.ranking.largest import largest
from recsys_moe.inference.ranking.retrieval import Retrievers
from recsys_moe.inference.threads import USERS_AT_ONCE
from recsys_moe.kinds import KINDS, first_columns, kind_of
from recsys_moe.model.ranker import Ranker
from recsys_moe.model.request import Request
from recsys_moe.schema import Task

Best = tuple[list[Tensor], dict[str, Tensor]]
"""Items of each user, best first; by task what was ranked on, one user after the other."""
NOTHING = torch.empty(0, dtype=torch.long)
SCORES_PER_BATCH = 1 << 21
"""Users times items ranked at a time; bounds the memory of a call with many users."""


@dataclass(frozen=True)
class Recommendation:
    """One ranked item."""

    rank: int
    item: str | int
    title: str | None
    scores: dict[str, float]
    """Every task that ranks; also what was ranked on, under its name, where that is not a task."""
    index: int = field(default=-1, repr=False)
    """Row of the item's table."""


class TopItems:
    """Turns logits of dense indices into ranked lists of raw ids."""

    def __init__(self, artifact: Artifact, ranker: Ranker) -> None:
        tasks = artifact.schema.tasks
        column = first_columns([kind_of(task) for task in tasks])
        pairs = zip(column, tasks, strict=True)
        self.tasks = {task.name: (n, task) for n, task in pairs if KINDS[task.kind].ranks}
        self.artifact = artifact
        self.prior_N = list_prior(artifact)
        self.ranker = ranker
        self.cold: ColdStartVectors | None = None
        self.retrievers = Retrievers(artifact.model, self.tasks, self.prior_N)

    def with_cold_users(self, cold: ColdStartVectors | None) -> TopItems:
        """A copy that knows the cold-start users ~0, ~1, ...."""
        if cold is None:
            return self
        result = copy.copy(self)
        result.cold = cold
        result.ranker = self.ranker.of(with_cold_users(self.artifact.model, cold))
        return result

    def best(
        self,
        users: Request,
        item_N: Tensor,
        k: int,
        *,
        exclude_seen: bool,
        formula: tuple[str, ...],
        retrieve: int | None = None,
    ) -> Iterator[list[Recommendation]]:
        """Per user the k best of the items (ascending indices) by the product of the tasks
        in `formula`, in batches of users of bounded size.

        `retrieve`: score only so many of them, of the largest inner products (see `retrieval`).
        """
        two_stages = retrieve is not None and retrieve < len(item_N)
        at_once = max(1, SCORES_PER_BATCH // max(1, len(item_N)))
        for part in _pieces(users, USERS_AT_ONCE if two_stages else at_once):
            seen = [self._seen(part, row) if exclude_seen else NOTHING for row in range(part.rows)]
            if retrieve is not None and two_stages:
                best = self._best_retrieved(part, item_N, k, seen, (formula[0], retrieve))
            else:
                best = self._best_of_all(part, item_N, k, seen, formula)
            yield from self._described(part, *best)

    def _best_of_all(
        self, users: Request, item_N: Tensor, k: int, seen: list[Tensor], formula: tuple[str, ...]
    ) -> Best:
        logits = {name: self._logits(name, users, item_N) for name in formula}
        ranking_UN = self._ranking(logits, item_N)
        rows = zip(ranking_UN, seen, strict=True)
        places = [_best_unseen(ranking_N, seen_S, item_N, k) for ranking_N, seen_S in rows]
        won = {name: _of_places(logits_UN, places) for name, logits_UN in logits.items()}
        return [item_N[place] for place in places], won

    def _best_retrieved(
        self, users: Request, item_N: Tensor, k: int, seen: list[Tensor], how: tuple[str, int]
    ) -> Best:
        """`how`: the task, and how many items the first stage retrieves."""
        items, logits = self.retrieved(users, item_N, seen, how)
        task = self.tasks[how[0]][1]
        rows = [*zip(items, logits, strict=True)]
        places = [largest(self.ranked_by(logits_C, task, item_C), k) for item_C, logits_C in rows]
        return [item_C[place] for item_C, place in zip(items, places, strict=True)], {
            how[0]: _of_places(logits, places)
        }

    def retrieved(
        self, users: Request, item_N: Tensor, out: Sequence[Tensor], how: tuple[str, int]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Per user what the first stage retrieves of the items, ascending, none of the user's
        `out`; and the logits."""
        name, count = how
        user_UD = self.ranker.model.encode_users(users)
        items = self.retrievers.of_task(name).retrieve(user_UD, item_N, count, out)
        sizes = [len(item_C) for item_C in items]
        place_B = torch.arange(users.rows).repeat_interleave(torch.tensor(sizes))
        logits_B = self.ranker.pairs(users, place_B, torch.cat(items), self.tasks[name][0])
        return items, [*logits_B.split(sizes)]

    def _logits(self, name: str, users: Request, item_N: Tensor) -> Tensor:
        """Logits (U, N) of a task."""
        return self.ranker.grid(users, item_N, self.tasks[name][0])

    def _ranking(self, logits: dict[str, Tensor], item_N: Tensor) -> Tensor:
        """What is ranked on. A link increases, but from a logit of 17 on float32 has only 1 for a
        probability: one task is ranked by its logits, a product is one of float64."""
        if len(logits) == 1:
            ((name, logits_UN),) = logits.items()
            return self.ranked_by(logits_UN, self.tasks[name][1], item_N)
        return self._product(logits)

    def ranked_by(self, logits_UN: Tensor, task: Task, item_N: Tensor) -> Tensor:
        """Logits with data.list_prior, where it is of the task."""
        if self.prior_N is None or not kind_of(task).has_positives:
            return logits_UN
        return logits_UN + self.prior_N[item_N]

    def _product(self, logits: dict[str, Tensor]) -> Tensor:
        """Predictions of the tasks, multiplied in float64."""
        return reduce(torch.mul, (self._link(name, v.double()) for name, v in logits.items()))

    def _link(self, name: str, logits: Tensor) -> Tensor:
        return kind_of(self.tasks[name][1]).link(logits)

    def _seen(self, users: Request, row: int) -> Tensor:
        """Indices of the items of training, of the history and of the events of a user."""
        seen_S, events = self.seen(int(users.user[row])), users.events
        if events is None:
            return seen_S
        return torch.cat([seen_S, events.item[events.window[row], : events.place[row]]])

    def _described(
        self, users: Request, items: list[Tensor], ranked: dict[str, Tensor]
    ) -> Iterator[list[Recommendation]]:
        """Recommendations from each user's items and the logits of the tasks ranked on, of one
        user after the other; those of other tasks are computed."""
        sizes = [len(item_K) for item_K in items]
        user_B = torch.arange(users.rows).repeat_interleave(torch.tensor(sizes))
        item_B = torch.cat(items)
        logits = {}
        for name, (number, _) in self.tasks.items():
            if name in ranked:
                logits[name] = ranked[name]
            else:
                logits[name] = self.ranker.pairs(users, user_B, item_B, number)
        scores = {name: self._link(name, logits_B) for name, logits_B in logits.items()}
        if len(ranked) > 1:
            factors = {name: logits[name] for name in ranked}
            scores["*".join(ranked)] = self._product(factors).float()
        split = {name: column.split(sizes) for name, column in scores.items()}
        for row, item_K in enumerate(items):
            yield self.entries(item_K, {name: s[row] for name, s in split.items()})

    def similar(self, item: int, k: int) -> list[Recommendation]:
        """The k other items whose embeddings have the largest cosine with that of an item."""
        table_ND = self.artifact.model.item_embedding.weight[: self.artifact.schema.item.size]
        cosine_N = F.cosine_similarity(table_ND.detach(), table_ND[item].detach())
        others_N = (torch.arange(len(cosine_N)) != item).nonzero()[:, 0]
        best_K = others_N[largest(cosine_N[others_N], k)]
        return self.entries(best_K, {"cosine": cosine_N[best_K]})

    def entries(self, item_K: Tensor, scores: dict[str, Tensor]) -> list[Recommendation]:
        """Ranked items from their indices and the scores to show, best first."""
        table = self.artifact.items.take(pa.array(item_K.numpy()))
        items = table["item"].to_pylist()
        known = "title" in table.column_names
        titles = table["title"].cast(pa.string()).to_pylist() if known else [None] * len(items)
        columns = [column.tolist() for column in scores.values()]
        rows = [dict(zip(scores, row, strict=True)) for row in zip(*columns, strict=True)]
        entries = zip(items, titles, rows, item_K.tolist(), strict=True)
        return [Recommendation(rank, *entry) for rank, entry in enumerate(entries, start=1)]

    def seen(self, user: int) -> Tensor:
        """Indices of the items with a positive training row of the user; of a cold-start user, the
        items of the history."""
        if user < 0 and self.cold is not None:
            return self.cold.seen[~user]
        offsets, items = self.artifact.seen["offsets"], self.artifact.seen["items"]
        if user >= len(offsets) - 1:
            return torch.empty(0, dtype=torch.long)
        return items[int(offsets[user]) : int(offsets[user + 1])].long()


def list_prior(artifact: Artifact) -> Tensor | None:
    """(N,) what data.list_prior adds to the logits of items; that of added ones is the mean. None
    where nothing is added."""
    weight, rows_N = artifact.config.data.list_prior, artifact.seen.get(ITEM_ROWS)
    if not weight or rows_N is None:
        return None
    log_N = weight * (1 + rows_N.float()).log()
    return torch.cat([log_N, log_N.mean().expand(artifact.schema.item.size - len(log_N))])


def _pieces(users: Request, size: int) -> Iterator[Request]:
    return (users.take(slice(at, at + size)) for at in range(0, users.rows, size))


def _best_unseen(ranking_N: Tensor, seen_S: Tensor, item_N: Tensor, k: int) -> Tensor:
    """Places in `item_N` of the k best items that the user has not seen, best first."""
    if not len(seen_S):
        return largest(ranking_N, k)
    place_N = (~torch.isin(item_N, seen_S)).nonzero()[:, 0]
    return place_N[largest(ranking_N[place_N], k)]


def _of_places(values: Iterable[Tensor], places: Sequence[Tensor]) -> Tensor:
    """Each user's values at these places, one user after the other."""
    return torch.cat([row_N[place] for row_N, place in zip(values, places, strict=True)])
