"""Predictions for pairs of dense indices, by the fastest way for so many of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recsys_moe.artifact.calibration import sigmoid
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.inference.catalogue import Ranker
from recsys_moe.inference.one_pair import OnePair
from recsys_moe.model.tasks import KINDS
from recsys_moe.schema import Task, TaskKind

ROWS_PER_BATCH = 8192
PLAIN_LINKS: dict[TaskKind, Callable[[float], float]] = {"binary": sigmoid, "regression": float}
"""The links of KINDS for one number."""


@dataclass(frozen=True)
class Scores:
    """Predictions for pairs, in the order of the pairs."""

    tasks: dict[str, Tensor]
    """Per task (N,) float32: a probability for binary tasks, a value for regression."""
    unseen_user: Tensor
    unseen_item: Tensor
    """bool (N,): the id was unknown in training and the out-of-vocabulary row was used."""
    calibrated: dict[str, Tensor] = field(default_factory=dict)
    """Per binary task (N,): the probability calibrated on validation; empty for a model without."""

    def plain(self) -> PlainScores:
        """The same in plain numbers."""
        return PlainScores(
            {name: values.tolist() for name, values in self.tasks.items()},
            self.unseen_user.tolist(),
            self.unseen_item.tolist(),
            {name: values.tolist() for name, values in self.calibrated.items()},
        )


@dataclass(frozen=True)
class PlainScores:
    """`Scores` as lists of plain numbers."""

    tasks: dict[str, list[float]]
    unseen_user: list[bool]
    unseen_item: list[bool]
    calibrated: dict[str, list[float]]


class Scorer:
    """Scores of pairs of a model. Safe to use from several threads."""

    def __init__(self, artifact: Artifact, ranker: Ranker, rows: int) -> None:
        """`rows`: pairs of one forward pass, a multiple of what the routers route together."""
        self._artifact, self._ranker, self._rows = artifact, ranker, rows
        self._tasks = artifact.schema.tasks
        self._names = [task.name for task in self._tasks]
        self._one = _one_pair(artifact, ranker)
        self.one_by_one = self._one.worth_up_to if self._one else 0
        """Pairs up to which plain numbers are made without any tensor."""

    def plain(self, user_B: list[int], item_B: list[int], calibrate: bool) -> PlainScores:
        """Scores of up to `one_by_one` pairs of indices."""
        assert self._one is not None
        logits_BT = [self._one.logits(*pair) for pair in zip(user_B, item_B, strict=True)]
        by_task = zip(self._tasks, zip(*logits_BT, strict=True), strict=True)
        logits = {task: list(column) for task, column in by_task}
        return PlainScores(
            {task.name: _linked(task, values) for task, values in logits.items()},
            [user == self._artifact.schema.user.size for user in user_B],
            [item == self._artifact.schema.item.size for item in item_B],
            self._calibrated_plain(logits) if calibrate else {},
        )

    def scores(self, user_B: Tensor, item_B: Tensor, calibrate: bool) -> Scores:
        """Scores of pairs of indices."""
        logits_BT = self.logits(user_B, item_B)
        links = {task.name: KINDS[task.kind].link for task in self._tasks}
        return Scores(
            {name: link(logits_BT[:, i]) for i, (name, link) in enumerate(links.items())},
            user_B == self._artifact.schema.user.size,
            item_B == self._artifact.schema.item.size,
            self._calibrated(logits_BT) if calibrate else {},
        )

    @torch.inference_mode()
    def logits(self, user_B: Tensor, item_B: Tensor) -> Tensor:
        """Logits (B, T) of pairs of indices."""
        model = self._artifact.model
        if self._one and 0 < len(user_B) <= self.one_by_one:
            pairs = zip(user_B.tolist(), item_B.tolist(), strict=True)
            return torch.tensor([self._one.logits(*pair) for pair in pairs])
        with self._ranker.seeded():
            logits = [model(*batch).logits_BT for batch in self.batches(user_B, item_B)]
        return torch.cat(logits) if logits else torch.empty(0, len(self._tasks))

    def batches(self, user_B: Tensor, item_B: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts that one forward pass takes."""
        return zip(user_B.split(self._rows), item_B.split(self._rows), strict=True)

    def _calibrated(self, logits_BT: Tensor) -> dict[str, Tensor]:
        parts = logits_BT.split(ROWS_PER_BATCH)
        return {
            name: torch.cat([fit.apply(part[:, self._names.index(name)]) for part in parts])
            for name, fit in self._artifact.calibration.items()
        }

    def _calibrated_plain(self, logits: dict[Task, list[float]]) -> dict[str, list[float]]:
        fits = self._artifact.calibration
        return {
            task.name: [*map(fits[task.name].apply_to_one, values)]
            for task, values in logits.items()
            if task.name in fits
        }


def _linked(task: Task, logits: list[float]) -> list[float]:
    link = PLAIN_LINKS[task.kind]
    return [link(logit) for logit in logits]


def whole_batch(eval_rows: int) -> int:
    """Rows of a batch that cuts no group of `eval_rows` that are routed together."""
    return math.lcm(ROWS_PER_BATCH, eval_rows)


def _one_pair(artifact: Artifact, ranker: Ranker) -> OnePair | None:
    """None where pairs must be routed together, or the numbers are not float32 on the CPU."""
    model = artifact.model
    plain = all(p.dtype == torch.float32 and p.is_cpu for p in model.parameters())
    known = all(task.kind in PLAIN_LINKS for task in artifact.schema.tasks)
    return OnePair(model) if plain and known and ranker.rows_are_independent else None
