"""The same on a GPU: routing, both ways to dispatch, a whole run. Skipped where there is none.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recsys_moe import Experts, MoE, Predictor, router
from recsys_moe.model.moe import Dispatch
from recsys_moe.routers import ROUTERS
from recsys_moe.train.cuda_graph import Recorded
from tests.conftest import Command

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
B, D, E, H, USERS = 96, 12, 8, 10, 40
SETTINGS = ("--router", "moesart", "--max-epochs", 2, "--batch-size", 256)


def layer(name: str, dispatch: Dispatch) -> MoE:
    torch.manual_seed(0)
    sizes = {"input_dim": D, "num_experts": E, "num_users": USERS, "num_tasks": 2}
    routers = [router(name, **sizes, task=task) for task in range(2)]
    for one in routers:
        one.setup(torch.arange(USERS))
    return MoE(Experts(E, D, H), routers, dispatch=dispatch, seed=0)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(B, D, generator=torch.Generator().manual_seed(1)), torch.arange(B) % USERS


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_a_router_decides_on_a_gpu_as_on_the_processor(name: str) -> None:
    here, there = layer(name, "sparse").eval(), layer(name, "sparse").eval().cuda()
    expected, _ = here(*inputs())
    found, _ = there(*(tensor.cuda() for tensor in inputs()))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(ROUTERS))
@pytest.mark.parametrize("dispatch", ["sparse", "static"])
def test_sparse_equals_dense_in_training_on_a_gpu(name: str, dispatch: Dispatch) -> None:
    """Values and gradients: both draw the same from the stream of their routers."""
    for sparse, dense in zip(*both_ways(name, dispatch), strict=True):
        torch.testing.assert_close(sparse, dense, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dispatch", ["sparse", "static"])
def test_sparse_equals_dense_under_bfloat16_autocast(dispatch: Dispatch) -> None:
    """To the seven bits of its fraction, a few roundings one after the other."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        results = both_ways("moesart", dispatch)
    for sparse, dense in zip(*results, strict=True):
        largest = dense.detach().abs().max().item()
        torch.testing.assert_close(sparse.float(), dense.float(), rtol=0.05, atol=0.02 * largest)


def both_ways(name: str, sparse: Dispatch) -> list[list[Tensor]]:
    """As `sparse` says, then dense: the mixtures, and the gradients of x, kernels and biases."""
    results = []
    ways: tuple[Dispatch, Dispatch] = (sparse, "dense")
    for dispatch in ways:
        made = layer(name, dispatch).train().cuda()
        x_BD, user_B = (tensor.cuda() for tensor in inputs())
        x_BD.requires_grad_()
        y_BTH, _ = made(x_BD, user_B)
        leaves = [x_BD, made.experts.kernel_EDH, made.experts.bias_EH]
        results.append([y_BTH, *torch.autograd.grad(y_BTH.float().square().mean(), leaves)])
    return results


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_a_replayed_layer_draws_and_computes_as_one_that_runs(name: str) -> None:
    """The same numbers from the same seed, whatever was drawn between; and so the gradients."""
    made = layer(name, "static").train().cuda()
    if not all(one.repeats for one in made.routers):
        pytest.skip("its steps are not recorded")
    made.experts.dropout.keep_of_256 = 128
    x_BD, user_B = (tensor.cuda() for tensor in inputs())

    def call() -> Tensor:
        made.zero_grad(set_to_none=True)
        y_BTH, _ = made(x_BD, user_B)
        y_BTH.square().mean().backward()
        return y_BTH.detach()

    made.reseed(3)
    call()
    made.reseed(7)
    expected = [call().clone(), *grads(made)]
    replay = Recorded(call, made)
    for seed in (3, 7):
        made.reseed(seed)
        found = [replay().clone(), *grads(made)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def grads(made: MoE) -> list[Tensor]:
    return [p.grad.clone() for p in made.parameters() if p.grad is not None]


def test_static_experts_do_not_wait_for_the_device() -> None:
    made = layer("moesart", "static").train().cuda()
    x_BD, user_B = (tensor.cuda() for tensor in inputs())
    made(x_BD, user_B)
    torch.cuda.set_sync_debug_mode("error")
    try:
        y_BTH, _ = made(x_BD, user_B)
        y_BTH.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_run_with_replays_ends_where_one_without_ends(
    precision: str, prepared: Path, tmp_path: Path, command: Command
) -> None:
    """Near it: some sums of many threads come in another order."""
    more = ("--set", f"trainer.precision={precision}", "--set", "trainer.accelerator=gpu")
    for way in ("true", "false"):
        out = ("--out", tmp_path / way, "--set", f"trainer.cuda_graph={way}")
        done = command("fit", "--data", prepared, *SETTINGS, *more, *out)
        assert done.exit_code == 0, done.err
    near = 1e-3 if precision == "32-true" else 0.02
    assert figures(tmp_path / "true") == pytest.approx(figures(tmp_path / "false"), rel=near)


def figures(run: Path) -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row["val/loss"]) for row in csv.DictReader(file)]


def test_a_run_on_a_gpu_ends_where_one_on_the_processor_ends(
    prepared: Path, tmp_path: Path, command: Command
) -> None:
    """Near it: its draws are others. What it leaves is read without a GPU."""
    for kind in ("cpu", "gpu"):
        out = ("--out", tmp_path / kind, "--set", f"trainer.accelerator={kind}")
        done = command("fit", "--data", prepared, *SETTINGS, *out)
        assert done.exit_code == 0, done.err
    assert figures(tmp_path / "gpu") == pytest.approx(figures(tmp_path / "cpu"), rel=0.02)
    assert Predictor.load(tmp_path / "gpu").score([1], [2]).tasks["watch"].shape == (1,)


def test_a_run_on_a_gpu_is_resumed_as_it_would_have_gone_on(
    prepared: Path, tmp_path: Path, command: Command
) -> None:
    """Within rounding: sums of many threads come in another order."""
    gpu = ("--set", "trainer.accelerator=gpu")
    assert command("fit", "--data", prepared, *SETTINGS, *gpu, "--out", tmp_path / "whole")[0] == 0
    first = (*SETTINGS[:3], 1, *SETTINGS[4:], *gpu, "--out", tmp_path / "parts")
    assert command("fit", "--data", prepared, *first)[0] == 0
    then = (*SETTINGS, *gpu, "--out", tmp_path / "parts", "--resume", "auto")
    assert command("fit", "--data", prepared, *then)[0] == 0
    assert figures(tmp_path / "parts") == pytest.approx(figures(tmp_path / "whole"), rel=1e-3)
