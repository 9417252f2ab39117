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
def test_sparse_equals_dense_in_training_on_a_gpu(name: str) -> None:
    """Values and gradients: both draw the same from the stream of their routers."""
    for sparse, dense in zip(*both_ways(name), strict=True):
        torch.testing.assert_close(sparse, dense, rtol=1e-4, atol=1e-6)


def test_sparse_equals_dense_under_bfloat16_autocast() -> None:
    """To the seven bits of its fraction, a few roundings one after the other."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        results = both_ways("moesart")
    for sparse, dense in zip(*results, strict=True):
        largest = dense.detach().abs().max().item()
        torch.testing.assert_close(sparse.float(), dense.float(), rtol=0.05, atol=0.02 * largest)


def both_ways(name: str) -> list[list[Tensor]]:
    """Sparse, then dense: the mixtures, and the gradients of x, kernels and biases."""
    results = []
    ways: tuple[Dispatch, Dispatch] = ("sparse", "dense")
    for dispatch in ways:
        made = layer(name, dispatch).train().cuda()
        x_BD, user_B = (tensor.cuda() for tensor in inputs())
        x_BD.requires_grad_()
        y_BTH, _ = made(x_BD, user_B)
        leaves = [x_BD, made.experts.kernel_EDH, made.experts.bias_EH]
        results.append([y_BTH, *torch.autograd.grad(y_BTH.float().square().mean(), leaves)])
    return results


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
