"""`tasks.weighting` in training: exact when stopped and on two devices, refused where not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from torch import Tensor

from recsys_moe.config.settings import parse_config
from recsys_moe.data.rows import Batch
from recsys_moe.errors import ConfigError
from recsys_moe.model.weighting import METHODS
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from recsys_moe.train.weighing import present, untouched
from tests.forks import on_two
from tests.train.processes.test_devices import SETTINGS, close, words
from tests.train.test_resume import EPOCH, STEP, VALIDATION, config, fit_in_pieces, results
from tests.train.test_train import first_rows
from tests.train.test_train import module as new_module

FACTORS = ["train/watch/factor", "train/rating/factor"]
PLAIN: dict[str, Any] = {"accelerator": "cpu", "logger": False, "limit_val_batches": 0}
PLAIN |= {"enable_checkpointing": False, "enable_progress_bar": False}
PLAIN |= {"enable_model_summary": False}


class Loader:
    """These batches; Lightning takes a list for several loaders."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_in_pieces_ends_in_the_same_bytes(
    name: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two passes, penalties, an average of the weights and counts of the router's."""
    settings = config(
        tasks={"weighting": name},
        optim={"ema_decay": 0.9},
        model={**SETTINGS["model"], "router": {"name": "default_moe"}, "dropout": 0.2},
    )
    fit(settings, prepared, tmp_path / "straight")
    stops = [(STEP, 40), (VALIDATION, 2), (EPOCH, 1)]
    fit_in_pieces(monkeypatch, settings, prepared, tmp_path / "run", stops)
    assert results(tmp_path / "run") == results(tmp_path / "straight")
    factors = pd.read_csv(tmp_path / "run" / "metrics.csv")[FACTORS]
    assert (factors > 0).all(axis=None) and (factors.nunique() == 3).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_two_devices_train_as_one(name: str, prepared: Path, tmp_path: Path) -> None:
    args = words(prepared, tmp_path / "two", 2, "--json", "--set", f"tasks.weighting={name}")
    result = on_two(args, tmp_path / "log")
    assert result.returncode == 0, result.stderr
    trainer = {**SETTINGS["trainer"], "max_epochs": 2}
    own = {**SETTINGS, "trainer": trainer, "tasks": {"weighting": name}}
    alone = fit(parse_config(own), prepared, tmp_path / "one")
    assert close(json.loads(result.stdout), alone, 1e-5)
    two, one = (pd.read_csv(tmp_path / run / "metrics.csv") for run in ("two", "one"))
    assert two[FACTORS].to_numpy() == pytest.approx(one[FACTORS].to_numpy(), abs=1e-4)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("router", ["thor", "relu"])
def test_it_trains_with_two_passes_penalties_and_row_weights(
    name: str, router: str, prepared: Path
) -> None:
    trained = new_module(
        prepared, model={**SETTINGS["model"], "router": {"name": router}}, tasks={"weighting": name}
    )
    rows = first_rows(prepared, 60)
    weighed = Batch(rows.user, rows.item, rows.labels, torch.arange(60) % 3)
    trainer = lightning.Trainer(max_epochs=2, **PLAIN)
    before = [p.clone() for p in trained.parameters()]
    trained.set_up(RecDataModule(prepared, trained.config))
    trainer.fit(trained, Loader(weighed, rows), Loader(rows))
    assert all(p.isfinite().all() for p in trained.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, trained.parameters(), strict=True))
    assert all(trainer.logged_metrics[name] > 0 for name in FACTORS)


def test_fixed_has_no_part_in_a_module(prepared: Path) -> None:
    fixed = new_module(prepared)
    assert fixed.weighting is None
    assert not [name for name in fixed.state_dict() if "weighting" in name]


def test_the_loss_shown_and_that_which_selects_keep_the_fixed_weights(
    prepared: Path, tmp_path: Path
) -> None:
    """val/loss = 0.9 BCE + 0.1 MSE, whatever the factors."""
    tasks = {"weighting": "famo", "watch": {"weight": 0.9}, "rating": {"weight": 0.1}}
    settings = config(tasks=tasks, optim={"loss_normalization": "absolute"})
    fit(settings, prepared, tmp_path / "run")
    rows = pd.read_csv(tmp_path / "run" / "metrics.csv")
    wanted = 0.9 * rows["val/watch/bce"] + 0.1 * rows["val/rating/mse"]
    assert rows["val/loss"].to_numpy() == pytest.approx(wanted.to_numpy(), abs=1e-6)


def test_one_task_is_not_weighed(prepared: Path) -> None:
    tasks = {"weighting": "famo", "watch": {"weight": 1}, "rating": {"training_weight": 0}}
    with pytest.raises(ConfigError, match=r"fixed with fewer than two .*, got famo for 1; set"):
        new_module(prepared, tasks=tasks)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_of_several_batches_is_refused(name: str, prepared: Path) -> None:
    trainer = lightning.Trainer(accumulate_grad_batches=2, max_epochs=1, **PLAIN)
    trained = new_module(prepared, tasks={"weighting": name})
    trained.set_up(RecDataModule(prepared, trained.config))
    with pytest.raises(ConfigError, match=f"must be 1 with tasks.weighting={name}, .*got 2; raise"):
        trainer.fit(trained, Loader(first_rows(prepared, 4)), Loader())


class Grows(Callback):
    def on_train_epoch_start(self, trainer: lightning.Trainer, *unused: Any) -> None:
        trainer.accumulate_grad_batches = 2


@pytest.mark.filterwarnings("ignore:.*overriding `LightningModule.optimizer_")
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("callback", [GradientAccumulationScheduler({3: 2}), Grows()])
def test_a_callback_that_makes_steps_of_several_batches_is_refused_before_the_first(
    name: str, callback: Callback, prepared: Path
) -> None:
    """Also one that would do so in an epoch to come."""
    trainer = lightning.Trainer(max_epochs=4, callbacks=[callback], **PLAIN)
    trained = new_module(prepared, tasks={"weighting": name})
    trained.set_up(RecDataModule(prepared, trained.config))
    with pytest.raises(ConfigError, match=f"must be 1 with tasks.weighting={name}, .*got 2; raise"):
        trainer.fit(trained, Loader(*[first_rows(prepared, 4)] * 4), Loader())
    assert trainer.global_step == 0


@pytest.mark.parametrize("name", ["gradnorm", "pcgrad"])
def test_a_compiled_module_is_refused_where_its_graph_is_needed_twice(
    name: str, prepared: Path
) -> None:
    trained = new_module(prepared, tasks={"weighting": name})
    trained.set_up(RecDataModule(prepared, trained.config))
    compiled: Any = torch.compile(trained, backend="eager")
    trainer = lightning.Trainer(max_epochs=1, **PLAIN)
    with pytest.raises(ConfigError, match=r"not be compiled with .*, got torch.compile; use famo"):
        trainer.fit(compiled, Loader(first_rows(prepared, 4)), Loader())


@pytest.mark.parametrize("name", ["gradnorm", "pcgrad"])
def test_gradients_of_half_precision_are_refused(name: str) -> None:
    half = {"tasks": {"weighting": name}, "trainer": {"precision": "16-mixed"}}
    with pytest.raises(ConfigError, match=r"not be 16-mixed with .*, got 16-mixed; use bf16-mixed"):
        parse_config(half)
    parse_config({**half, "tasks": {"weighting": "famo"}})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("gradnrom", "one of fixed, uncertainty, .*, got 'gradnrom'; did you mean 'gradnorm'"),
        (5, "got 5; known"),
        ({"name": "gradnorm", "alpha": -1}, r"tasks.weighting.alpha: .*got -1; e.g. .*alpha=1.5"),
        ({"name": "famo", "alpha": 1}, "tasks.weighting: unknown key 'alpha'; known: decay, lr"),
    ],
)
def test_an_unknown_method_or_setting_is_an_error(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"tasks": {"weighting": given}})


def test_tasks_that_count_have_a_labelled_row_of_weight_above_0() -> None:
    labels = torch.tensor([[1.0, math.nan, 2.0, 1.0], [0.0, math.nan, math.nan, 0.0]])
    ids, weight = torch.zeros(2, dtype=torch.long), torch.tensor([0.0, 1.0])
    assert present(Batch(ids, ids, labels), [1, 1, 1, 0]).tolist() == [True, False, True, False]
    found = present(Batch(ids, ids, labels, weight), [1, 1, 1, 0]).tolist()
    assert found == [True, False, False, False]


def counts_of(trained: RecModule) -> dict[str, Tensor]:
    moe = trained.model.moe
    pending = {"means": moe.output_means._pending} if moe.output_means else {}
    return {**dict(moe.named_buffers()), **pending}


def test_a_look_back_leaves_no_counts_in_the_model(prepared: Path) -> None:
    trained = new_module(prepared, model={**SETTINGS["model"], "router": {"name": "default_moe"}})
    rows = first_rows(prepared, 30)
    trained.train().model(rows.request)
    before = {name: value.clone() for name, value in counts_of(trained).items()}
    with untouched(trained.model):
        trained.model(rows.request)
        assert not torch.equal(counts_of(trained)["means"], before["means"])
    for name, value in counts_of(trained).items():
        assert torch.equal(value, before[name]), name
