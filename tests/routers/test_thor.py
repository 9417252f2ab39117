"""THOR: random experts in training, all of them at inference, and a loss for their agreement.

Axes: B batch, T tasks, E experts.
"""

from __future__ import annotations

import math

import pytest
import torch

from recsys_moe.data.rows import Batch
from recsys_moe.kinds import KINDS
from recsys_moe.model.tasks import mean_disagreement
from recsys_moe.routers import Router, RouterConfig, RouterShape, Routing
from recsys_moe.routers.thor import THORRouter
from recsys_moe.schema import Feature, Schema, Task
from recsys_moe.seeds import stream_seed
from recsys_moe.train.module import RecModule
from tests.kinds.test_contract import kind_for, spread

NAN = math.nan


def make(num_experts: int = 4) -> THORRouter:
    return THORRouter(THORRouter.Config(), RouterShape(3, num_experts))


def test_draws_are_uniform_and_fresh_in_every_pass() -> None:
    """4,000 draws over 4 experts: 1,000 each, standard deviation sqrt(4,000 * 3/16) = 27."""
    router, x_BD = make().train(), torch.zeros(1, 3)
    drawn = torch.cat([router(x_BD).weights_BE for _ in range(4000)])
    assert (drawn.sum(0) - 1000).abs().max() < 4 * 27
    same = (drawn[1:] == drawn[:-1]).all(-1).float().mean().item()
    assert same == pytest.approx(1 / 4, abs=4 * (3 / 16 / 4000) ** 0.5)


def test_symmetric_kl_golden() -> None:
    """p = .8, q = .6: (.8 - .6) (ln 4 - ln 1.5) / 2 = .1 * .980829 = .098083."""
    first, second = torch.tensor([math.log(4)]), torch.tensor([math.log(1.5)])
    found = KINDS["binary"].disagreement(first, second).item()
    assert found == pytest.approx(0.098083, abs=1e-6)
    kl = [a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b)) for a, b in _both(0.8, 0.6)]
    assert found == pytest.approx(sum(kl) / 2, abs=1e-6)


def _both(p: float, q: float) -> list[tuple[float, float]]:
    return [(p, q), (q, p)]


def test_symmetric_kl_stays_finite_where_probabilities_are_0_and_1() -> None:
    """(1 - 0) (200 - -200) / 2 = 200."""
    first = torch.tensor([200.0], requires_grad=True)
    loss = KINDS["binary"].disagreement(first, torch.tensor([-200.0])).sum()
    loss.backward()
    assert loss.item() == pytest.approx(200) and first.grad.item() == pytest.approx(0.5)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_disagreement_is_symmetric_and_its_gradient_right(kind: str) -> None:
    first = torch.tensor([0.3, -2, 4], dtype=torch.float64, requires_grad=True)
    second = torch.tensor([1.0, -2, -1], dtype=torch.float64, requires_grad=True)
    mine = kind_for(kind)

    def apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return mine.disagreement(spread(mine, one), spread(mine, other))

    found = apart(first, second)
    assert found.shape == (3,) and found[1].item() == 0 and (found >= 0).all()
    torch.testing.assert_close(found, apart(second, first))
    torch.autograd.gradcheck(apart, (first, second))


def test_disagreement_is_a_mean_over_labelled_rows() -> None:
    """((3 - 1)^2 + (1 - 2)^2) / 2 = 2.5; the unlabelled third row counts nowhere."""
    first, second = torch.tensor([3.0, 1, 9]), torch.tensor([1.0, 2, 0], requires_grad=True)
    loss = mean_disagreement(KINDS["regression"], first, second, torch.tensor([5.0, 3, NAN]))
    loss.backward()
    assert loss.item() == 2.5 and second.grad.tolist() == [-2, 1, 0]
    nothing = mean_disagreement(KINDS["regression"], first, second, torch.full((3,), NAN))
    assert nothing.item() == 0


def module(**router: object) -> RecModule:
    tasks = (
        Task(name="watch", kind="binary", column="watch"),
        Task(name="rating", kind="regression", column="rating", weight=3.0),
    )
    schema = Schema(
        name="tiny",
        protocol="paper",
        vocabulary="all",
        user=Feature(name="user", column="user", size=5, id_type="int64"),
        item=Feature(name="item", column="item", size=5, id_type="int64"),
        tasks=tasks,
        rows={},
        labels={},
    )
    model = {
        "embedding_dim": 4,
        "num_experts": 4,
        "expert_dim": 8,
        "tower_dims": [8],
        "dropout": 0,
        "biases": False,
    }
    router = {"name": "thor", **router}
    made = RecModule({"model": {**model, "router": router}}, schema.to_json())
    made._steps_per_epoch = 1
    return made.train()


BATCH = Batch(
    torch.arange(5, dtype=torch.int32),
    torch.arange(5, dtype=torch.int32),
    torch.tensor([[1.0, 4], [0, NAN], [1, 2], [0, NAN], [1, 5]]),
)


def test_a_step_adds_both_losses_and_the_weighted_disagreement() -> None:
    """loss 1 + loss 2 + alpha (KL of watch + 3 * squared difference of rating), 3 the task weight.

    The logged loss is the mean of the two.
    """
    trained = module(consistency=0.7)
    total = trained.training_step(BATCH, 1)
    trained.model.reseed(stream_seed(0, "step", 0, 0))
    first, second = (trained.model(BATCH.request) for _ in range(2))
    losses = [trained.losses(output, BATCH.labels)[0] for output in (first, second)]
    (p, r), (q, s) = first.logits_BT.t(), second.logits_BT.t()
    kl = ((p.sigmoid() - q.sigmoid()) * (p - q) / 2).mean()
    squares = (r - s).square()[[0, 2, 4]].mean()
    torch.testing.assert_close(total, losses[0] + losses[1] + 0.7 * (kl + 3 * squares))
    assert not torch.equal(first.logits_BT, second.logits_BT) and squares > 0
    assert trained._loss_sum.item() == pytest.approx(5 * sum(losses).item() / 2)


class TwicePricedRouter(Router):
    """Of two passes, with a loss of its own that grows from pass to pass."""

    class Config(RouterConfig):
        name: str = "tests.routers.test_thor:TwicePricedRouter"

    summary = "for the test below"
    passes = 2
    calls = 0

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"calls": 10.0}

    def forward(self, x_BD: torch.Tensor, user_B: torch.Tensor | None = None) -> Routing:
        self.calls += 1
        weights_BE = x_BD.new_full((len(x_BD), self.shape.num_experts), 1 / self.shape.num_experts)
        loss = x_BD.new_tensor(float(self.calls))
        return Routing(weights_BE, weights_BE > 0, losses={"calls": loss})


def test_a_step_adds_the_penalties_of_both_passes() -> None:
    """10 (1 + 2) for each of two tasks, beside two equal losses and no disagreement."""
    trained = module(name=TwicePricedRouter.Config().name)
    total = trained.training_step(BATCH, 1)
    losses, _ = trained.losses(trained.model(BATCH.request), BATCH.labels)
    torch.testing.assert_close(total, 2 * losses + 60)
