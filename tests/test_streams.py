"""Random streams: every step draws anew, no unit follows from another, no router is passed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recsys_moe.data.columns import load_columns
from recsys_moe.model.experts import Dropout, Experts
from recsys_moe.model.moe import MoE
from recsys_moe.routers import RouterShape, Routing
from recsys_moe.routers.moesart import MoesartRouter
from recsys_moe.schema import Schema
from recsys_moe.seeds import stream_seed
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL

SHAPE = RouterShape(8, 6, 1)


def test_every_step_draws_anew_and_the_same_step_the_same(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout and moesart draw from (seed, step): a step resumed is the step that was."""
    schema = Schema.load(prepared)
    batch = load_columns(prepared, schema, "train").take(slice(64))
    module = RecModule({"model": TINY_MODEL}, schema.to_json()).train()
    module._steps_per_epoch = 25

    def loss(step: int) -> float:
        monkeypatch.setattr(RecModule, "global_step", step)
        return module.training_step(batch, 1).item()

    found = [loss(step) for step in (0, 1, 25, 0)]
    assert found[0] == found[3]
    assert len(set(found[:3])) == 3


def streams(seed: int, steps: int) -> Iterator[int]:
    """Seeds of the dropout and of two routers in every step."""
    for step in range(steps):
        base = stream_seed(seed, "step", step, 0)
        yield from (
            stream_seed(base, *name) for name in (("dropout",), ("router", 0), ("router", 1))
        )


def test_streams_share_a_generator_on_a_cpu_as_rarely_as_their_32_bits_say() -> None:
    """184,560 streams in 61,520 steps: 184,560^2 / 2^33 = 4.0 pairs, twice that with another seed;
    the upper half of the 63 bits would tell all of them apart, were it read.
    """
    first, second = (torch.tensor(list(streams(seed, 61_520))) for seed in (0, 1))
    assert len(first.unique()) == len(first)
    first, second = first % 2**32, second % 2**32
    assert len(first) - len(first.unique()) == 5
    assert torch.isin(first, second).sum() < 8 + 5 * 8**0.5
    seed = int(first[0])
    drawn = [torch.rand(9, generator=torch.Generator().manual_seed(seed + n)) for n in (0, 2**32)]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("rate", [0.3, 0.5])
def test_no_unit_of_a_dropout_mask_follows_from_another(rate: float) -> None:
    """Autocorrelation at every lag of 2**18 units: of as many normal numbers the largest is 4.8."""
    mask = Dropout(rate).train().mask((2**10, 2**8), torch.empty(0))
    kept_N = (mask.flatten() > 0).double()
    centred_N = kept_N - kept_N.mean()
    spectrum = torch.fft.rfft(centred_N).abs() ** 2
    correlation_N = torch.fft.irfft(spectrum, n=len(kept_N))[1 : len(kept_N) // 2 + 1]
    z = correlation_N / (centred_N.square().mean() * len(kept_N) ** 0.5)
    assert z.abs().max() < 6.5
    assert z[:-1].square().mean() == pytest.approx(1, abs=0.05)


class Child(MoesartRouter):
    """Takes the first two experts, whatever its parent would draw."""

    calls = 0

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        Child.calls += 1
        weights_BE = torch.zeros(len(x_BD), 6)
        weights_BE[:, :2] = 0.5
        return Routing(weights_BE, weights_BE > 0)


def test_a_child_of_a_router_is_asked_itself_in_training() -> None:
    routers = [Child(Child.Config(), SHAPE) for _ in range(2)]
    layer = MoE(Experts(6, 8, 4, 0.0), routers).train()
    _, routings = layer(torch.randn(5, 8), torch.zeros(5, dtype=torch.long))
    assert Child.calls == 2
    assert all(routing.selected_BE[:, :2].all() for routing in routings)


def test_a_router_decides_in_full_precision_under_autocast() -> None:
    router = MoesartRouter(MoesartRouter.Config(temperature=1.0), SHAPE).train()
    x_BD = torch.randn(64, 8)
    with torch.autocast("cpu", torch.bfloat16):
        routing = router(x_BD)
        rounded_BE = router.gate(x_BD.float())
    assert {t.dtype for t in (routing.logits_BE, routing.probs_BE, routing.weights_BE)} == {
        torch.float32
    }
    exact_BE = router.gate(x_BD)
    torch.testing.assert_close(routing.logits_BE, exact_BE)
    assert not torch.equal(rounded_BE.float(), exact_BE)  # bfloat16 would show
