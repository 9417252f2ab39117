"""The EMA of the weights is what is validated, saved and exported."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from recsys_moe.artifact.routing_history import top_experts
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema
from recsys_moe.train import routing_log
from recsys_moe.train.averaging import AVERAGE, STRIDE, WeightAverage, averaged
from recsys_moe.train.fit import fit
from recsys_moe.train.resume import read_checkpoint
from tests.conftest import TINY_MODEL

from .test_resume import config, results


def whole_strides(data: Path) -> int:
    """A batch size with a multiple of STRIDE steps in an epoch."""
    rows = Schema.load(data).rows["train"]
    return next(size for size in range(16, rows) if -(-rows // size) % STRIDE == 0)


def train(data: Path, out: Path, average: float) -> Path:
    optim = {"lr": 1e-2, "ema_decay": average}
    trainer = {"max_epochs": 2, "batch_size": whole_strides(data)}
    fit(config(optim=optim, trainer=trainer), data, out)
    return out


def losses(run: Path) -> list[float]:
    with open(run / "metrics.csv") as stream:
        return [float(row["val/loss"]) for row in csv.DictReader(stream)]


def test_a_mean_over_hardly_a_step_is_the_weights(prepared: Path, tmp_path: Path) -> None:
    """0.1 ** 32 is nothing beside 1; an epoch ends with an update of the mean."""
    without, with_mean = (
        train(prepared, tmp_path / name, average) for name, average in (("0", 0.0), ("0.1", 0.1))
    )
    assert results(with_mean) == results(without)


def test_a_long_mean_is_over_a_tenth_of_the_steps_at_first(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At step n the decay is at most 1 - 10 / n: 1 - 10/32 = .6875 at the first update."""
    shares: list[float] = []
    lerp = torch._foreach_lerp_

    def recorded(means: list[Tensor], values: list[Tensor], share: float) -> None:
        shares.append(share)
        lerp(means, values, share)

    monkeypatch.setattr(torch, "_foreach_lerp_", recorded)
    train(prepared, tmp_path / "run", 0.8)
    steps = range(STRIDE, STRIDE * (len(shares) + 1), STRIDE)
    expected = [1 - min(0.8, 1 - 10 / step) ** STRIDE for step in steps]
    assert shares == pytest.approx(expected)
    assert shares[0] == pytest.approx(1 - 0.6875**32) and expected[-1] == 1 - 0.8**32


def test_the_artifact_has_the_mean_and_the_checkpoint_both(prepared: Path, tmp_path: Path) -> None:
    run = train(prepared, tmp_path / "run", 0.99)
    state = read_checkpoint(run / "checkpoints/best.ckpt").state
    artifact = load_file(run / "model/weights.safetensors")
    for name, mean in state[AVERAGE].items():
        assert mean.equal(artifact[name.removeprefix("model.")])
        assert not mean.equal(state["state_dict"][name])
    kept = json.loads((run / "evaluation/val.json").read_text())
    assert kept["loss"] == pytest.approx(min(losses(run)), rel=1e-6)


def short(prepared: Path, out: Path, epochs: int, **more: Any) -> list[float]:
    """Validation losses of epochs of 5 steps each."""
    steps = {"batch_size": -(-Schema.load(prepared).rows["train"] // 5), "max_epochs": epochs}
    optim, model = {"lr": 1e-2, "ema_decay": 0.99}, {**TINY_MODEL, "biases": False}
    fit(config(optim=optim, trainer=steps, model=model), prepared, out, **more)
    return losses(out)


def test_a_mean_follows_epochs_that_are_shorter_than_a_stride(
    prepared: Path, tmp_path: Path
) -> None:
    found = short(prepared, tmp_path / "run", 4)
    assert found[0] > found[1] > found[2] > found[3]


def test_a_model_that_is_trained_for_a_few_steps_more_is_another(
    prepared: Path, tmp_path: Path
) -> None:
    short(prepared, tmp_path / "run", 2)
    short(prepared, tmp_path / "more", 1, init_from=tmp_path / "run")
    name = "model/weights.safetensors"
    old, new = (load_file(tmp_path / run / name) for run in ("run", "more"))
    assert not old["user_embedding.weight"].equal(new["user_embedding.weight"])


def test_a_run_without_a_mean_so_far_gets_one_where_it_goes_on() -> None:
    callback = WeightAverage(0.9)
    callback.on_load_checkpoint(Any, Any, {"state_dict": {}})  # type: ignore[arg-type]
    module = torch.nn.Linear(2, 1)
    callback.on_fit_start(Any, module)  # type: ignore[arg-type]
    assert callback.mean["weight"].equal(module.weight)


def test_the_routing_log_is_of_the_weights_that_are_validated(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Tensor] = []

    def recorded(model: Recommender, request: Request) -> Tensor:
        used.append(model.user_embedding.weight.detach().clone())
        return top_experts(model, request)

    monkeypatch.setattr(routing_log, "top_experts", recorded)
    run = train(prepared, tmp_path / "run", 0.99)
    checkpoint = read_checkpoint(run / "checkpoints" / "last.ckpt").state
    name = "model.user_embedding.weight"
    assert torch.equal(used[-1], averaged(checkpoint)[name])
    assert not torch.equal(used[-1], checkpoint["state_dict"][name])
