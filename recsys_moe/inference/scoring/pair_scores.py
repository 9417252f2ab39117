"""Predictions for pairs of dense indices: the model's forward pass, links and calibrations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.inference.cold_start.model import ColdStartVectors, with_cold_users
from recsys_moe.kinds import by_task, first_columns, kind_of
from recsys_moe.model.expert_shares import ExpertShare
from recsys_moe.model.ranker import Ranker
from recsys_moe.model.request import Request

ROWS_PER_BATCH = 4096
"""Memory of a larger forward pass goes back to the system and comes anew: a tenth of the time."""


@dataclass(frozen=True)
class Scores:
    """Predictions for pairs, in the order of the pairs."""

    tasks: dict[str, Tensor]
    """Per task (N,) float32: its prediction; per class, TASK_CLASS, the probability."""
    unseen_user: Tensor
    unseen_item: Tensor
    """bool (N,): the id is unknown and was scored with the OOV embedding."""
    calibrated: dict[str, Tensor] = field(default_factory=dict)
    """Per task whose kind calibrates (N,): the probability calibrated on validation, if any."""
    classes: dict[str, list[str]] = field(default_factory=dict)
    """Per task with classes the most likely one of each pair."""


class PairScorer:
    """Scores of pairs of a model. Safe to use from several threads."""

    def __init__(self, artifact: Artifact, ranker: Ranker, rows: int) -> None:
        """`rows`: pairs of one forward pass, a multiple of what the routers route together."""
        self._artifact, self._ranker, self._rows = artifact, ranker, rows
        self._names = [task.name for task in artifact.schema.tasks]
        self._unseen = artifact.unseen("user"), artifact.unseen("item")
        self._kinds = [kind_of(task) for task in artifact.schema.tasks]

    def scores(
        self, request: Request, calibrate: bool, cold: ColdStartVectors | None = None
    ) -> Scores:
        """Scores of pairs of indices; cold-start users, ~i, need their encoder."""
        logits_BT, (user_B, item_B) = self.logits(request, cold), (request.user, request.item)
        parts = zip(self._names, self._kinds, by_task(logits_BT, self._kinds), strict=True)
        found = [kind.predictions(name, logits_B) for name, kind, logits_B in parts]
        return Scores(
            {name: values_B for one in found for name, values_B in one.items()},
            (user_B < 0) | self._unseen[0][user_B.clamp(min=0)],
            (item_B < 0) | self._unseen[1][item_B.clamp(min=0)],
            self._calibrated(logits_BT) if calibrate else {},
            self._classes(logits_BT),
        )

    def _classes(self, logits_BT: Tensor) -> dict[str, list[str]]:
        parts = zip(self._names, self._kinds, by_task(logits_BT, self._kinds), strict=True)
        return {
            name: [kind.classes[place] for place in logits_BC.argmax(-1).tolist()]
            for name, kind, logits_BC in parts
            if kind.classes
        }

    @torch.inference_mode()
    def logits(self, request: Request, cold: ColdStartVectors | None = None) -> Tensor:
        """Logits (B, L) of pairs of indices, all columns; the model's ranker scores many."""
        model = with_cold_users(self._artifact.model, cold)
        is_many = cold is None and request.rows >= ROWS_PER_BATCH
        order_B = self._order(request)
        if order_B is not None:
            request = request.take(order_B)
        with self._ranker.draws.seeded():
            logits = [
                self._ranker.logits(part) if is_many else model(part).logits_BT
                for part in self.batches(request)
            ]
        columns = sum(kind.outputs for kind in self._kinds)
        logits_BL = torch.cat(logits) if logits else torch.empty(0, columns)
        return logits_BL if order_B is None else logits_BL[order_B.argsort(stable=True)]

    def _order(self, request: Request) -> Tensor | None:
        """Of rows of several batches: by window, so that one batch encodes it and not each; None
        where rows are routed together or read no windows."""
        events, are_alone = request.events, self._ranker.draws.rows_are_independent
        if events is None or not are_alone or request.rows <= self._rows:
            return None
        return events.window.argsort(stable=True)

    def expert_shares(
        self, request: Request, cold: ColdStartVectors | None = None
    ) -> list[dict[str, list[ExpertShare]]]:
        """Per pair and task what its experts contribute; nothing of a model without routers."""
        model = with_cold_users(self._artifact.model, cold)
        if not model.routers:
            return [{name: [] for name in self._names} for _ in range(request.rows)]
        per_pair: list[dict[str, list[ExpertShare]]] = []
        with self._ranker.draws.seeded():
            for part in self.batches(request):
                shares = zip(*model.expert_shares(part), strict=True)
                per_pair += [dict(zip(self._names, row, strict=True)) for row in shares]
        return per_pair

    def batches(self, request: Request) -> Iterator[Request]:
        """Parts that one forward pass takes."""
        starts = range(0, request.rows, self._rows)
        return (request.take(slice(start, start + self._rows)) for start in starts)

    def _calibrated(self, logits_BT: Tensor) -> dict[str, Tensor]:
        parts = logits_BT.split(ROWS_PER_BATCH)
        column = dict(zip(self._names, first_columns(self._kinds), strict=True))
        return {
            name: torch.cat([fit.apply(part[:, column[name]]) for part in parts])
            for name, fit in self._artifact.calibration.items()
        }


def whole_batch(eval_rows: int) -> int:
    """Rows of a batch that cuts no group of `eval_rows` that are routed together."""
    return math.lcm(ROWS_PER_BATCH, eval_rows)
