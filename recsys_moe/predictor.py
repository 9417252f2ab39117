"""Scores and rankings on raw ids from a model folder. Never imports Lightning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from recsys_moe.artifact import Artifact, load_artifact
from recsys_moe.errors import DataError
from recsys_moe.schema import Feature
from recsys_moe.tasks import KINDS

ROWS_PER_BATCH = 8192


@dataclass(frozen=True)
class Scores:
    """Predictions for pairs, in the order of the pairs."""

    tasks: dict[str, Tensor]
    """Per task (N,) float32: a probability for binary tasks, a value for regression."""
    unseen_user: Tensor
    unseen_item: Tensor
    """bool (N,): the id was unknown in training and the out-of-vocabulary row was used."""


@dataclass(frozen=True)
class Recommendation:
    """One ranked item."""

    rank: int
    item: str | int
    title: str | None
    scores: dict[str, float]


class Vocabulary:
    """Raw ids -> dense indices; ids that training has not seen -> `feature.size`."""

    def __init__(self, feature: Feature, ids: pa.ChunkedArray) -> None:
        self.feature = feature
        self.ids = ids.combine_chunks()
        self._keys = self.ids.cast(pa.string())

    def index(self, raw: pa.Array) -> tuple[Tensor, Tensor]:
        """Indices (N,) int64 and which of the ids are unseen. Ids compare as text: 7 is "7"."""
        found = pc.index_in(raw.cast(pa.string()), value_set=self._keys)
        index = torch.tensor(found.fill_null(self.feature.size).to_numpy(zero_copy_only=False))
        return index.long(), index == self.feature.size


class Predictor:
    """A model folder ready to score.

    >>> predictor = Predictor.load("runs/first")          # doctest: +SKIP
    >>> predictor.score([1, 2], [50, 260]).tasks["watch"]  # doctest: +SKIP
    """

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.tasks = artifact.schema.tasks
        self.users = Vocabulary(artifact.schema.user, artifact.users["user"])
        self.items = Vocabulary(artifact.schema.item, artifact.items["item"])

    @classmethod
    def load(cls, path: str | Path) -> Predictor:
        """From a model folder or a run folder. Raises DataError when it cannot be read."""
        return cls(load_artifact(Path(path)))

    def score(self, users: list[str | int] | pa.Array, items: list[str | int] | pa.Array) -> Scores:
        """Predictions for the pairs zip(users, items). Raises DataError on unequal lengths."""
        users, items = _array(users), _array(items)
        if len(users) != len(items):
            raise DataError(
                f"users and items must have the same length, got {len(users)} and {len(items)}"
            )
        user, unseen_user = self.users.index(users)
        item, unseen_item = self.items.index(items)
        return Scores(self._predict(user, item), unseen_user, unseen_item)

    def recommend(
        self, user: str | int, k: int = 10, exclude_seen: bool = False
    ) -> list[Recommendation]:
        """The k best items of the whole catalogue for one user, best first.

        Ranked by the first binary task, or by the first task where there is none; ties go to the
        lower item index. An unseen user gets the ranking of the out-of-vocabulary row.
        """
        index, _ = self.users.index(_array([user]))
        item = torch.arange(self.items.feature.size)
        predictions = self._predict(index.expand(len(item)), item)
        ranking = predictions[self._ranking_task()].clone()
        if exclude_seen:
            ranking[self.seen(int(index))] = -torch.inf
        best = ranking.sort(descending=True, stable=True).indices[:k]
        best = best[ranking[best] > -torch.inf]
        return [self._entry(rank, int(i), predictions) for rank, i in enumerate(best, start=1)]

    def seen(self, user: int) -> Tensor:
        """Indices of the items that the user with this index watched in the training rows."""
        offsets, items = self.artifact.seen["offsets"], self.artifact.seen["items"]
        if user >= len(offsets) - 1:
            return torch.empty(0, dtype=torch.long)
        return items[int(offsets[user]) : int(offsets[user + 1])].long()

    def is_unseen_user(self, user: str | int) -> bool:
        return bool(self.users.index(_array([user]))[1])

    @torch.inference_mode()
    def _predict(self, user: Tensor, item: Tensor) -> dict[str, Tensor]:
        self.artifact.model.reseed(self.artifact.config.trainer.seed)
        rows = math.lcm(ROWS_PER_BATCH, self.artifact.config.model.router.eval_rows)
        batches = zip(user.split(rows), item.split(rows), strict=True)
        logits = [self.artifact.model(*batch).logits_BT for batch in batches]
        together = torch.cat(logits) if logits else torch.empty(0, len(self.tasks))
        return {t.name: KINDS[t.kind].link(together[:, i]) for i, t in enumerate(self.tasks)}

    def _ranking_task(self) -> str:
        binary = [task.name for task in self.tasks if task.kind == "binary"]
        return (binary or [self.tasks[0].name])[0]

    def _entry(self, rank: int, index: int, predictions: dict[str, Tensor]) -> Recommendation:
        items = self.artifact.items
        title = items["title"][index].as_py() if "title" in items.column_names else None
        scores = {name: float(values[index]) for name, values in predictions.items()}
        return Recommendation(rank, self.items.ids[index].as_py(), title, scores)


def _array(ids: list[str | int] | pa.Array) -> pa.Array:
    if isinstance(ids, pa.Array | pa.ChunkedArray):
        return ids
    return pa.array([str(value) for value in ids], pa.string())
