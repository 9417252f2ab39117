"""What a training step passes to the routers and uses of them.

Axes: B batch, T tasks, E experts.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe.data.rows import Batch
from recsys_moe.model.output import Output
from recsys_moe.model.penalties import trimmed_lasso, z_loss
from recsys_moe.routers import Routing
from recsys_moe.routers.hash import HashRouter
from recsys_moe.schema import Feature, Schema, Task
from recsys_moe.seeds import stream_seed
from recsys_moe.train.module import RecModule

USERS = 6
SCHEMA = Schema(
    name="tiny",
    protocol="paper",
    vocabulary="all",
    user=Feature(name="user", column="user", size=USERS, id_type="int64"),
    item=Feature(name="item", column="item", size=5, id_type="int64"),
    tasks=(
        Task(name="watch", kind="binary", column="watch"),
        Task(name="rating", kind="regression", column="rating", weight=3.0),
    ),
    rows={},
    labels={},
)
MODEL = {
    "embedding_dim": 4,
    "num_experts": 4,
    "expert_dim": 8,
    "tower_dims": [8],
    "dropout": 0,
    "biases": False,
}
BATCH = Batch(
    torch.arange(5, dtype=torch.int32),
    torch.arange(5, dtype=torch.int32),
    torch.tensor([[1.0, 4], [0, math.nan], [1, 2], [0, math.nan], [1, 5]]),
)


def module(router: dict[str, Any], **sections: Any) -> RecModule:
    raw = {"model": {**MODEL, "router": router}, **sections}
    made = RecModule(raw, SCHEMA.to_json())
    made._steps_per_epoch = 4
    return made.train()


def first_step(trained: RecModule) -> tuple[Tensor, Output]:
    """The loss of step 0, and what the model gave for it."""
    total = trained.training_step(BATCH, 1)
    trained.model.reseed(stream_seed(0, "step", 0, 0))
    return total, trained.model(BATCH.request)


@pytest.mark.parametrize(
    ("router", "weights"),
    [
        ({"name": "comet", "entropy": 0.7}, {"entropy": 0.7}),
        (
            {"name": "comet", "permutation": True, "permutation_entropy": 0.3},
            {"entropy": 0.1, "permutation": 0.3},
        ),
        ({"name": "topk", "permutation": True}, {"permutation": 1e-4}),
        ({"name": "dselect_k", "unused_codes": 0.5}, {"entropy": 0.1, "unused_codes": 0.5}),
    ],
)
def test_a_step_adds_the_weighted_losses_of_every_tasks_router(
    router: dict[str, Any], weights: dict[str, float]
) -> None:
    """Not multiplied by the task weights, and not in the reported loss."""
    trained = module(router)
    total, output = first_step(trained)
    tasks, _ = trained.losses(output, BATCH.labels)
    extra = [
        weight * routing.losses[name]
        for routing in output.routings
        for name, weight in weights.items()
    ]
    torch.testing.assert_close(total, tasks + torch.stack(extra).sum())
    assert all(loss.item() > 0 for loss in extra[:1])
    assert trained._loss_sum.item() == pytest.approx(5 * tasks.item())


def test_a_step_adds_the_weighted_penalties_of_every_tasks_router() -> None:
    trained = module({"name": "vmoe"}, penalties={"trimmed_lasso": 0.5, "z_loss": 0.25})
    total, output = first_step(trained)
    tasks, penalties = trained.losses(output, BATCH.labels)
    expected = sum(
        0.5 * trimmed_lasso(routing.probs_BE, 2) + 0.25 * z_loss(routing.logits_BE)
        for routing in output.routings
    )
    torch.testing.assert_close(penalties, expected)
    torch.testing.assert_close(total, tasks + expected)
    assert trained._loss_sum.item() == pytest.approx(5 * tasks.item())


def test_a_cosine_schedule_falls_to_0_over_the_epochs() -> None:
    """(1 + cos(pi n / 4)) / 2 of the rate after n of 4 epochs."""
    optim = {"schedule": "cosine", "lr": 1.0}
    made = module({"name": "topk"}, optim=optim, trainer={"max_epochs": 4})
    found = made.configure_optimizers()
    optimizer, schedule = found["optimizer"], found["lr_scheduler"]
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([1, 0.853553, 0.5, 0.146447, 0], abs=1e-6)


def test_routers_get_the_training_done_in_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 3 of 4 per epoch: .75."""
    trained = module({"name": "topk", "permutation": True, "permutation_epochs": 1.0})
    monkeypatch.setattr(RecModule, "global_step", property(lambda self: 3))
    trained.training_step(BATCH, 1)
    done = [router.permutation.progress.item() for router in trained.model.routers]
    assert done == [0.75, 0.75]


@pytest.mark.parametrize(("name", "passes"), [("topk", 1), ("thor", 2)])
def test_routers_end_a_step_once_in_a_step_and_after_its_passes(name: str, passes: int) -> None:
    trained, calls = module({"name": name}), []
    router = trained.model.routers[0]
    router.register_forward_hook(lambda *_: calls.append("forward"))
    router.on_step_end = lambda all_sum: calls.append(f"end {all_sum(torch.tensor(5))}")
    trained.training_step(BATCH, 1)
    assert calls == ["forward"] * passes + ["end 5"]


def test_routers_get_the_number_of_training_rows_of_each_user() -> None:
    """Users 0 to 5 occur 1 to 6 times: 21 rows over 4 experts, 5 or 6 each."""
    trained = module({"name": "hash", "balanced": True})
    user_N = torch.repeat_interleave(torch.arange(USERS), torch.arange(1, USERS + 1))
    trained.start_routers(torch.bincount(user_N))
    for router in trained.model.routers:
        assert isinstance(router, HashRouter)
        rows_E = torch.bincount(router.expert_U[user_N], minlength=4)
        assert sorted(rows_E.tolist()) == [5, 5, 5, 6]


def test_the_evaluated_share_counts_an_expert_once_for_all_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Row 0: experts 0 and 1, row 1: 0, 1 and 2. 5 of 2 * 4 pairs."""
    trained = module({"name": "vmoe"})
    selections_TBE = torch.tensor(
        [[[1, 0, 0, 0], [1, 1, 0, 0]], [[1, 1, 0, 0], [0, 0, 1, 0]]], dtype=torch.bool
    )
    routings = [Routing(selected_BE.float(), selected_BE) for selected_BE in selections_TBE]
    trained._add_to_epoch(torch.tensor(0.5 * 2), Output(torch.zeros(2, 2), {"routings": routings}))
    trained._rows += 2
    logged: dict[str, float] = {}
    monkeypatch.setattr(trained, "log", lambda name, value: logged.update({name: float(value)}))
    trained._log_epoch_sums()
    assert logged == {"train/loss": 0.5, "train/evaluated_share": 5 / 8}
