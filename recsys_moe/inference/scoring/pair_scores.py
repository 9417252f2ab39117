"""Predictions for pairs of dense indices: the model's forward pass, links and calibrations."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.inference.cold_start.model import ColdStartVectors, with_cold_users
from recsys_moe.inference.scoring.precomputed import Precomputed
from recsys_moe.kinds import kind_of
from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.model.request import Request
from recsys_moe.routers import Router

ROWS_PER_BATCH = 4096
"""Memory of a larger forward pass goes back to the system and comes anew: a tenth of the time."""


@dataclass(frozen=True)
class Scores:
    """Predictions for pairs, in the order of the pairs."""

    tasks: dict[str, Tensor]
    """Per task (N,) float32: what the link of its kind gives."""
    unseen_user: Tensor
    unseen_item: Tensor
    """bool (N,): the id is unknown and was scored with the OOV embedding."""
    calibrated: dict[str, Tensor] = field(default_factory=dict)
    """Per task whose kind calibrates (N,): the probability calibrated on validation, if any."""


class PairScorer:
    """Scores of pairs of a model. Safe to use from several threads."""

    def __init__(self, artifact: Artifact, draws: Draws, rows: int) -> None:
        """`rows`: pairs of one forward pass, a multiple of what the routers route together."""
        self._artifact, self._draws, self._rows = artifact, draws, rows
        self._precomputed = Precomputed(artifact.model)
        self._names = [task.name for task in artifact.schema.tasks]
        self._unseen = artifact.unseen("user"), artifact.unseen("item")
        self._links = [kind_of(task).link for task in artifact.schema.tasks]

    def scores(
        self, user_B: Tensor, item_B: Tensor, calibrate: bool, cold: ColdStartVectors | None = None
    ) -> Scores:
        """Scores of pairs of indices; cold-start users, ~i, need their encoder."""
        logits_BT = self.logits(user_B, item_B, cold)
        by_task = zip(self._names, self._links, logits_BT.unbind(1), strict=True)
        return Scores(
            {name: link(logits_B) for name, link, logits_B in by_task},
            (user_B < 0) | self._unseen[0][user_B.clamp(min=0)],
            (item_B < 0) | self._unseen[1][item_B.clamp(min=0)],
            self._calibrated(logits_BT) if calibrate else {},
        )

    @torch.inference_mode()
    def logits(
        self, user_B: Tensor, item_B: Tensor, cold: ColdStartVectors | None = None
    ) -> Tensor:
        """Logits (B, T) of pairs of indices; many pairs use precomputed first layers."""
        score = _forward(with_cold_users(self._artifact.model, cold))
        if cold is None and len(user_B) >= ROWS_PER_BATCH and self._precomputed.fits:
            score = self._precomputed.logits
        with self._draws.seeded():
            logits = [score(*batch) for batch in self.batches(user_B, item_B)]
        return torch.cat(logits) if logits else torch.empty(0, len(self._names))

    def batches(self, user_B: Tensor, item_B: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts that one forward pass takes."""
        return zip(user_B.split(self._rows), item_B.split(self._rows), strict=True)

    def _calibrated(self, logits_BT: Tensor) -> dict[str, Tensor]:
        parts = logits_BT.split(ROWS_PER_BATCH)
        return {
            name: torch.cat([fit.apply(part[:, self._names.index(name)]) for part in parts])
            for name, fit in self._artifact.calibration.items()
        }


def _forward(model: MultiTaskMoE) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda user_B, item_B: model(Request(user_B, item_B)).logits_BT


def whole_batch(eval_rows: int) -> int:
    """Rows of a batch that cuts no group of `eval_rows` that are routed together."""
    return math.lcm(ROWS_PER_BATCH, eval_rows)


class Draws:
    """Which routers of a model draw random numbers at evaluation, and where those start."""

    def __init__(self, model: MultiTaskMoE, seed: int) -> None:
        self._model, self._seed = model, seed
        self._one_at_a_time = threading.Lock()
        self.by_task = [_draws(router) for router in model.routers]

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """For a forward pass whose random numbers, if a router draws any, start at the seed.

        Reseeding and drawing are one step: a model that draws serves one thread at a time.
        """
        if not any(self.by_task):
            yield
            return
        with self._one_at_a_time:
            self._model.reseed(self._seed)
            yield

    @property
    def rows_are_independent(self) -> bool:
        """Is the routing of a row a function of that row alone?"""
        return not any(self.by_task) and not any(r.batch_dependent for r in self._model.routers)


def _draws(router: Router) -> bool:
    """Does evaluation consume random numbers? Then a row's routing depends on its place."""
    generator = router.stream.generator(torch.device("cpu"))
    before = generator.get_state()
    with torch.inference_mode():
        router(torch.zeros(1, router.shape.input_dim), torch.zeros(1, dtype=torch.long))
    return not torch.equal(before, generator.get_state())
