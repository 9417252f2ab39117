"""The paper's MovieLens-1M shape on random rows: model, batches and a step in parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys_moe.data.rows import Batch, Columns
from recsys_moe.kinds import KINDS
from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.model.output import Output
from recsys_moe.model.shape import ModelShape
from recsys_moe.model.tasks import mean_loss
from recsys_moe.routers.moesart import MoesartRouter
from recsys_moe.schema import Feature, Schema, Task
from recsys_moe.train.cuda_graph import Recorded

USERS, ITEMS, RATINGS, BATCH, TASKS = 6040, 3706, 1_000_209, 512, 2
VAL_ROWS = 224_943
BATCHES = 16
"""Batches that a step goes through in a circle."""


def build_model(**settings: Any) -> MultiTaskMoE:
    """The paper's: embeddings of 128, 16 experts 256 -> 256, dropout 0.5, moesart with k=2."""
    torch.manual_seed(0)
    model = MultiTaskMoE(
        MultiTaskMoE.Config(**{"router": MoesartRouter.Config(), **settings}),
        ModelShape(USERS, ITEMS, TASKS),
    )
    model.reseed(0)  # else both tasks' routers draw the same numbers, hence the same experts
    return model


def random_columns(rows: int) -> Columns:
    user = torch.randint(0, USERS, (rows,), dtype=torch.int32)
    item = torch.randint(0, ITEMS, (rows,), dtype=torch.int32)
    watch = torch.randint(0, 2, (rows, 1)).float()
    rating = torch.randint(1, 6, (rows, 1)).float().masked_fill(watch == 0, torch.nan)
    return Columns(user, item, torch.cat([watch, rating], 1))


LABELS = {
    "watch": {"labelled": RATINGS * 2, "mean": 0.5, "positive": RATINGS},
    "rating": {"labelled": RATINGS, "mean": 3.0, "std": 2**0.5},
}
"""Of uniform draws: the variance of 1 to 5 is (4 + 1 + 0 + 1 + 4) / 5 = 2."""


def schema() -> Schema:
    return Schema(
        name="random", protocol="paper", vocabulary="all",
        user=Feature(name="user", column="user_index", size=USERS, id_type="int64"),
        item=Feature(name="item", column="item_index", size=ITEMS, id_type="int64"),
        tasks=(
            Task(name="watch", kind="binary", column="watch", weight=0.9),
            Task(name="rating", kind="regression", column="rating", weight=0.1, low=1, high=5),
        ),
        rows={}, labels={"train": LABELS},
    )  # fmt: skip


def make_data(out: Path, ratings: int = RATINGS) -> Path:
    """A prepared folder of made-up ratings."""
    from data_prep.synthetic import prepare

    prepare(out, users=USERS, items=ITEMS, interactions=ratings)
    return out


def task_loss(output: Output, labels_BT: Tensor) -> Tensor:
    watch = mean_loss(KINDS["binary"], output.logits_BT[:, 0], labels_BT[:, 0])
    return 0.9 * watch + 0.1 * mean_loss(
        KINDS["regression"], output.logits_BT[:, 1], labels_BT[:, 1]
    )


class Step:
    """A training step whose parts are called one after the other."""

    def __init__(
        self,
        model: MultiTaskMoE,
        batch_size: int = BATCH,
        device: str = "cpu",
        cast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.model, self.cast = model.to(device), cast
        self.optimizer = torch.optim.Adam(model.parameters(), lr=4e-4, eps=1e-7, fused=True)
        columns = random_columns(BATCHES * batch_size)
        slices = [slice(i * batch_size, (i + 1) * batch_size) for i in range(BATCHES)]
        parts = [columns.take(rows)[:3] for rows in slices]
        batches = [Batch(*(tensor.to(device) for tensor in part)) for part in parts]
        self.batches: Iterator[Batch] = itertools.cycle(batches)

    def forward(self) -> None:
        batch = next(self.batches)
        with self.cast():
            self.output = self.model(batch.request)
            self.loss = task_loss(self.output, batch.labels)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.loss.backward()

    def forward_backward(self) -> None:
        self.forward()
        self.backward()

    def optimize(self) -> None:
        self.optimizer.step()

    def whole(self) -> None:
        self.forward_backward()
        self.optimize()

    def record(self) -> None:
        """From now on `whole` replays forward and backward pass as a CUDA graph."""
        static = Batch(*(of if of is None else of.clone() for of in next(self.batches)))
        batches, self.batches = self.batches, itertools.repeat(static)
        del self.output, self.loss
        graph = Recorded(self.forward_backward, self.model)
        self.batches = batches

        def replay() -> None:
            for to, values in zip(static[:3], next(self.batches)[:3], strict=True):
                to.copy_(values)
            graph()

        self.forward_backward = replay  # type: ignore[method-assign]

    @property
    def pairs(self) -> int:
        """(example, expert) pairs of the last forward pass that some task chose."""
        chosen = torch.stack([routing.selected_BE for routing in self.output.routings])
        return int(chosen.any(0).sum())
