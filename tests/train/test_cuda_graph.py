"""Recorded steps: what a graph cannot hold is not recorded, and a replay is the step itself.

Without a device a call that repeats itself stands for the graph: `Rerun`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.rows import Batch
from recsys_moe.errors import ConfigError
from recsys_moe.routers import ROUTERS, selection
from recsys_moe.train import fit as fit_module
from recsys_moe.train.cuda_graph import (
    WARM_UP,
    StepRecorder,
    obstacle,
    recorder_for,
    with_static_shapes,
)
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL, Command

CUDA = torch.device("cuda")
BATCH = 64


class Rerun:
    """As `Recorded`: does not run what it is given before it is called."""

    made = 0

    def __init__(self, call: Callable[[], Any], module: nn.Module) -> None:
        self.call, self.replays = call, 0
        Rerun.made += 1

    def __call__(self) -> Any:
        self.replays += 1
        return self.call()


def config(model: Mapping[str, Any] = TINY_MODEL, **sections: Any) -> Config:
    trainer = {"max_epochs": 2, "batch_size": BATCH, **sections.pop("trainer", {})}
    return parse_config({"model": model, "trainer": trainer, **sections})


def module_of(prepared: Path, settings: Config) -> tuple[RecModule, RecDataModule]:
    data = RecDataModule(prepared, settings)
    module = RecModule(settings, data.schema.to_json())
    module.set_up(data)
    return module, data


MANY = {**TINY_MODEL, "num_experts": 16}
MODELS = {
    "moesart": {**MANY, "dropout": 0.5},
    "static": {**MANY, "dispatch": "static", "dropout": 0.5},
    "joint": {**MANY, "router": {"name": "moesart", "joint": 3}},
    "topk with biases": {**MANY, "router": {"name": "topk"}, "biases": True},
    "two towers": {"name": "two_tower", "embedding_dim": 8},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_run_with_replays_writes_the_bytes_of_one_without(
    name: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps but those that warm up, and the last of each epoch, which has fewer rows."""
    settings = config(MODELS[name], optim={"ema_decay": 0.9}, penalties={})
    fit(settings, prepared, tmp_path / "plain")
    made: list[StepRecorder] = []

    def recorder(module: RecModule, device: torch.device) -> StepRecorder:
        made.append(StepRecorder(module, Rerun))
        return made[0]

    monkeypatch.setattr(fit_module, "recorder_for", recorder)
    fit(settings, prepared, tmp_path / "replayed")
    rows = len(RecDataModule(prepared, settings).rows("train"))
    assert made[0]._recorded.replays == 2 * (rows // BATCH) - WARM_UP
    for file in ("metrics.csv", "model/weights.safetensors"):
        plain, replayed = (tmp_path / way / file for way in ("plain", "replayed"))
        assert plain.read_bytes() == replayed.read_bytes(), file


def test_a_run_with_replays_is_resumed_as_it_would_have_gone_on(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = lambda module, device: StepRecorder(module, Rerun)  # noqa: E731
    monkeypatch.setattr(fit_module, "recorder_for", recorder)
    fit(config(), prepared, tmp_path / "whole")
    fit(config(trainer={"max_epochs": 1}), prepared, tmp_path / "parts")
    fit(config(), prepared, tmp_path / "parts", resume="auto")
    whole, parts = (tmp_path / name / "model/weights.safetensors" for name in ("whole", "parts"))
    states = [load_file(path) for path in (whole, parts)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


class NoWait(TorchDispatchMode):
    """Refuses operations that wait for a device, have shapes that follow values, or copy from the
    host."""

    WAITING = (
        "_local_scalar_dense",
        "nonzero",
        "unique",
        "masked_select",
        "lift_fresh",
        "bincount",
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert not any(f".{waiting}" in name for waiting in self.WAITING), name
        if "index.Tensor" in name or "index_put" in name:
            assert all(one is None or one.dtype != torch.bool for one in args[1]), name
        return func(*args, **(kwargs or {}))


def recordable(settings: Config, prepared: Path) -> tuple[RecModule, Batch, str]:
    module, data = module_of(prepared, settings)
    return module, next(iter(data.train_batches(0))), obstacle(module, CUDA)


PENALTIES = ("trimmed_lasso", "switch", "importance", "load", "z_loss", "coupling")
SETTINGS: dict[str, dict[str, Any]] = {
    **{f"router {name}": {"model": {**MANY, "router": {"name": name}}} for name in ROUTERS},
    **{name: {"model": model} for name, model in MODELS.items()},
    **{
        f"penalty {name}": {
            "model": {**MANY, "router": {"name": "topk"}},
            "penalties": {name: 0.1},
        }
        for name in PENALTIES
    },
    "negatives": {"data": {"resample_negatives": True, "popularity_exponent": 0.5}},
    "id dropout": {"data": {"id_dropout": 0.1}},
    "a diagonal term": {"model": {**TINY_MODEL, "bilinear_rank": 4, "bilinear_diagonal": True}},
    "relative losses": {"optim": {"loss_normalization": "relative"}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_that_is_recorded_waits_for_the_device(
    name: str, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every router and setting that is not refused, forward and backward."""
    module, batch, reason = recordable(config(**SETTINGS[name]), prepared)
    if reason:
        assert reason == f"model.router.name={name.removeprefix('router ')}"
        return
    monkeypatch.setattr(selection, "FEW", 0)  # on a device rows are sorted
    with_static_shapes(module.model)
    module.train()
    module.recorder = StepRecorder(module, Rerun)
    module.model.reseed(0)
    with NoWait():
        module.step_losses(batch, 0)[0].backward()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"trainer": {"precision": "16-mixed"}}, "trainer.precision=16-mixed"),
        ({"tasks": {"weighting": {"name": "uncertainty"}}}, "tasks.weighting=uncertainty"),
        ({"model": {**TINY_MODEL, "item_bag": "items"}}, "encoders of features, bags"),
        ({"model": {**TINY_MODEL, "router": {"name": "thor"}}}, "model.router.name=thor"),
        ({"model": {**TINY_MODEL, "router": {"name": "base"}}}, "model.router.name=base"),
        ({"model": {**TINY_MODEL, "router": {"name": "comet"}}}, "model.router.name=comet"),
    ],
)
def test_what_a_graph_cannot_hold_is_named(
    sections: dict[str, Any], said: str, prepared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = {**sections.get("trainer", {}), "cuda_graph": "auto"}
    module, _ = module_of(prepared, config(**{**sections, "trainer": trainer}))
    assert said in obstacle(module, CUDA)
    with caplog.at_level(logging.INFO, "recsys_moe.fit"):
        assert recorder_for(module, CUDA) is None
    assert said in caplog.text
    module.config = config(**{**sections, "trainer": {**trainer, "cuda_graph": True}})
    with pytest.raises(ConfigError, match=r"trainer.cuda_graph=true must not be set with"):
        recorder_for(module, CUDA)


@pytest.mark.parametrize("wrong", ["maybe", "Auto", 2])
def test_what_is_neither_auto_nor_a_switch_is_refused(wrong: Any) -> None:
    said = f"trainer.cuda_graph must be auto, true or false, got {wrong!r}; e.g. trainer."
    with pytest.raises(ConfigError) as error:
        parse_config({"trainer": {"cuda_graph": wrong}})
    assert str(error.value).startswith(said)
    assert parse_config({"trainer": {"cuda_graph": "false"}}).trainer.cuda_graph is False


def test_it_is_off_by_default_and_without_a_device_which_is_said(
    prepared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module, _ = module_of(prepared, config())
    assert recorder_for(module, CUDA) is None
    assert module.model.moe.dispatch == "auto"
    module.config = config(trainer={"cuda_graph": "auto"})
    with caplog.at_level(logging.INFO, "recsys_moe.fit"):
        assert recorder_for(module, torch.device("cpu")) is None
    assert "not recorded as a CUDA graph because of a cpu device" in caplog.text
    assert isinstance(recorder_for(module, CUDA), StepRecorder)
    assert module.model.moe.dispatch == "static"


def test_true_without_a_device_is_refused_before_anything_is_written(
    prepared: Path, tmp_path: Path, command: Command
) -> None:
    settings = ("--set", "trainer.cuda_graph=true", "--set", "trainer.accelerator=cpu")
    for more in ((), ("--dry-run",)):
        done = command("fit", "--data", prepared, "--out", tmp_path / "run", *settings, *more)
        assert done.exit_code == 2
        assert "trainer.cuda_graph=true must not be set with a cpu device" in done.err
        assert not (tmp_path / "run").exists()


def test_only_batches_of_the_largest_layout_are_replayed(prepared: Path) -> None:
    """A smaller batch first, as in a run that is resumed before the last one of an epoch."""
    module, data = module_of(prepared, config())
    batches = list(data.train_batches(0))
    module._trainer = None
    recorder = StepRecorder(module, Rerun)
    module.recorder = recorder
    assert len(batches[-1].user) < len(batches[0].user)
    assert recorder(batches[-1]) is None
    done = [recorder(batch) is not None for batch in batches[: WARM_UP + 2]]
    assert done == [False] * WARM_UP + [True, True]
    assert recorder(batches[-1]) is None and not recorder.has_replayed
    heavy = batches[0]._replace(weight=torch.ones(BATCH))
    assert recorder(heavy) is None
    assert recorder(batches[1]) is not None and recorder.has_replayed
