"""NaN or infinite values end a run with an error, and only good checkpoints stay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe.artifact.evaluation import Evaluation
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.rows import Batch
from recsys_moe.errors import RunError
from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.routers import ROUTERS
from recsys_moe.train.checkpoints import _refuse_not_finite
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL

NAN = float("nan")
WITHOUT_GATE = {"hash", "kmeans", "thor", "shared_bottom", "single_task"}


def config(log_every_n_steps: int, router: str = "moesart", **trainer: Any) -> Config:
    """An epoch has 25 steps."""
    steps = {"max_epochs": 2, "batch_size": 64, "log_every_n_steps": log_every_n_steps, **trainer}
    return parse_config({"model": {**TINY_MODEL, "router": {"name": router}}, "trainer": steps})


def nan_loss_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value alone: gradients, and so the weights, stay finite."""
    losses = RecModule._parts

    def spoilt(self: RecModule, *args: Any) -> Any:
        loss, penalties = losses(self, *args)
        return loss + (NAN if self.global_step == step else 0), penalties

    monkeypatch.setattr(RecModule, "_parts", spoilt)


@pytest.mark.parametrize(("at", "seen"), [(6, 6), (7, 25)], ids=["logged", "not logged"])
def test_the_run_ends_at_the_logged_step_or_with_the_epoch(
    at: int, seen: int, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third step is logged. No folder stays, which the next run would have to overwrite."""
    nan_loss_at(at, monkeypatch)
    with pytest.raises(RunError, match=f"the training loss became nan by step {seen}"):
        fit(config(3), prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_in_validation_the_run_ends_with_the_epoch(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Evaluation.result
    spoilt = lambda self, split: {**result(self, split), "loss": NAN}  # noqa: E731
    monkeypatch.setattr(Evaluation, "result", spoilt)
    with pytest.raises(RunError, match="the validation loss became nan by step 25"):
        fit(config(100), prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_after_an_epoch_its_checkpoints_stay_and_the_remedy_is_another_run(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--resume auto keeps the learning rate, and so the fault."""
    nan_loss_at(31, monkeypatch)
    with pytest.raises(RunError, match=r"by step 31; lower optim.lr.*--overwrite.* finish "):
        fit(config(3), prepared, tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["best.ckpt", "last.ckpt"]


def test_a_folder_with_files_of_others_is_not_removed(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan_loss_at(6, monkeypatch)
    load = RecDataModule.train_dataloader

    def noted(module: RecDataModule) -> object:
        (tmp_path / "run" / "notes.txt").write_text("dear")
        return load(module)

    monkeypatch.setattr(RecDataModule, "train_dataloader", noted)
    with pytest.raises(RunError, match="by step 6"):
        fit(config(3), prepared, tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").read_text() == "dear"


def test_an_error_of_a_custom_part_before_any_checkpoint_leaves_no_folder(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: RecModule, *args: Any) -> Any:
        raise IndexError("as of a router from outside")

    monkeypatch.setattr(RecModule, "_parts", broken)
    with pytest.raises(IndexError):
        fit(config(3), prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def user_table(model: MultiTaskMoE) -> Tensor:
    return model.user_embedding.weight


def first_gate(model: MultiTaskMoE) -> Tensor:
    return next(model.routers[0].parameters())


def unread_expert(model: MultiTaskMoE) -> Tensor:
    """Of a hash router that uses the other three."""
    for router in model.routers:
        router.expert_U.clamp_(max=2)  # type: ignore[union-attr, operator]
    return model.moe.experts.kernel_EDH[3]


def nan_weight_at_5(
    monkeypatch: pytest.MonkeyPatch, weight: Callable[[MultiTaskMoE], Tensor]
) -> None:
    """Let `weight` become NaN before step 5."""
    train = RecModule.training_step

    def broken(module: RecModule, batch: Batch, batch_idx: int) -> Tensor:
        if module.global_step == 5:
            with torch.no_grad():
                weight(module.model).fill_(torch.nan)
        return train(module, batch, batch_idx)

    monkeypatch.setattr(RecModule, "training_step", broken)


@pytest.mark.parametrize(
    ("router", "weight"),
    [
        *((name, user_table) for name in sorted(ROUTERS)),
        *((name, first_gate) for name in sorted(ROUTERS.keys() - WITHOUT_GATE)),
        ("hash", unread_expert),
    ],
)
def test_a_weight_of_nan_ends_training_by_the_next_logged_step(
    router: str,
    weight: Callable[[MultiTaskMoE], Tensor],
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every fourth step is logged. Of an expert also where no row visits it."""
    nan_weight_at_5(monkeypatch, weight)
    with pytest.raises(RunError, match="became nan.* by step 8"):
        fit(config(4, router), prepared, tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def values(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    for part in state.values() if isinstance(state, dict) else ():
        yield from values(part)


@pytest.mark.parametrize("weight", [user_table, first_gate])
def test_no_checkpoint_with_values_that_are_not_finite_is_written(
    weight: Callable[[MultiTaskMoE], Tensor],
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checkpoints at steps 4 and 8; no step but the first is logged."""
    nan_weight_at_5(monkeypatch, weight)
    with pytest.raises(RunError, match=r"embedding\.weight became nan.* by step 8"):
        fit(config(1000, checkpoint_every_n_steps=4), prepared, tmp_path / "run")
    (written,) = (tmp_path / "run" / "checkpoints").iterdir()
    saved = torch.load(written, weights_only=True)
    assert (written.name, saved["global_step"]) == ("last.ckpt", 4)
    parts = saved["state_dict"], dict(enumerate(saved["optimizer_states"]))
    assert all(value.isfinite().all() for part in parts for value in values(part))


def test_an_optimizer_state_that_alone_is_not_finite_is_not_saved_either() -> None:
    moments = {"state": {0: {"exp_avg": torch.tensor([1.0, math.inf])}}}
    checkpoint = {"state_dict": {"w": torch.ones(2)}, "optimizer_states": [moments]}
    with pytest.raises(RunError, match="the state of the optimizer became .* by step 7"):
        _refuse_not_finite({**checkpoint, "global_step": 7})
    moments["state"][0]["exp_avg"][1] = 0
    _refuse_not_finite({**checkpoint, "global_step": 7})
