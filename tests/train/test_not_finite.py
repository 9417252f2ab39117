"""A run whose weights are not finite any more ends in words, and leaves only good checkpoints."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe.config.settings import parse_config
from recsys_moe.data.columns import Batch
from recsys_moe.errors import RunError
from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.routers import ROUTERS
from recsys_moe.train.checkpoints import _refuse_not_finite
from recsys_moe.train.fit import fit
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL

WITHOUT_GATE = {"hash", "thor", "shared_bottom", "single_task"}
AT, EVERY = 5, 4
"""The step in which a weight breaks, and steps between the logged ones: the next is step 8."""


def user_table(model: MultiTaskMoE) -> Tensor:
    return model.user_embedding.weight


def first_gate(model: MultiTaskMoE) -> Tensor:
    return next(model.routers[0].parameters())


def unread_expert(model: MultiTaskMoE) -> Tensor:
    return model.moe.experts.kernel_EDH[3]


def break_at(
    monkeypatch: pytest.MonkeyPatch, step: int, weight: Callable[[MultiTaskMoE], Tensor]
) -> None:
    """Let `weight` become NaN before step `step`."""
    train = RecModule.training_step

    def broken(module: RecModule, batch: Batch, batch_idx: int) -> Tensor:
        if module.global_step == step:
            with torch.no_grad():
                weight(module.model).fill_(torch.nan)
        return train(module, batch, batch_idx)

    monkeypatch.setattr(RecModule, "training_step", broken)


def failure(prepared: Path, out: Path, router: str, **trainer: Any) -> str:
    settings = {"batch_size": 64, "max_epochs": 1, "log_every_n_steps": EVERY, **trainer}
    model = {**TINY_MODEL, "router": {"name": router}}
    with pytest.raises(RunError, match="became nan.* by step .*") as error:
        fit(parse_config({"model": model, "trainer": settings}), prepared, out)
    assert not (out / "model").exists()
    return str(error.value)


def step_of(message: str) -> int:
    found = re.search(r"step (\d+)", message)
    assert found
    return int(found[1])


def values(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    for part in state.values() if isinstance(state, dict) else ():
        yield from values(part)


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_a_gate_or_a_table_of_nan_ends_training_by_the_next_logged_step(
    name: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for weight in [user_table] if name in WITHOUT_GATE else [user_table, first_gate]:
        with monkeypatch.context() as patched:
            break_at(patched, AT, weight)
            message = failure(prepared, tmp_path / weight.__name__, name)
        assert step_of(message) == 2 * EVERY


def test_an_expert_of_nan_that_no_row_visits_ends_training_too(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(model: MultiTaskMoE) -> Tensor:
        for router in model.routers:
            router.expert_U.clamp_(max=2)  # type: ignore[union-attr, operator]
        return unread_expert(model)

    break_at(monkeypatch, AT, unread)
    assert step_of(failure(prepared, tmp_path / "run", "hash")) == 2 * EVERY


@pytest.mark.parametrize("weight", [user_table, first_gate])
def test_no_checkpoint_with_values_that_are_not_finite_is_written(
    weight: Callable[[MultiTaskMoE], Tensor],
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checkpoints at steps 4 and 8; no step but the first is logged; step 5 breaks."""
    break_at(monkeypatch, AT, weight)
    trainer = {"checkpoint_every_n_steps": 4, "log_every_n_steps": 1000}
    message = failure(prepared, tmp_path / "run", "moesart", **trainer)
    assert step_of(message) == 8 and "embedding.weight" in message
    written = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [path.name for path in written] == ["last.ckpt"]
    saved = torch.load(written[0], weights_only=True)
    assert saved["global_step"] == 4
    parts = saved["state_dict"], dict(enumerate(saved["optimizer_states"]))
    assert all(value.isfinite().all() for part in parts for value in values(part))


def test_an_optimizer_state_that_alone_is_not_finite_is_not_saved_either() -> None:
    moments = {"state": {0: {"exp_avg": torch.tensor([1.0, math.inf])}}}
    checkpoint = {"state_dict": {"w": torch.ones(2)}, "optimizer_states": [moments]}
    with pytest.raises(RunError, match="the state of the optimizer became .* by step 7"):
        _refuse_not_finite({**checkpoint, "global_step": 7})
    moments["state"][0]["exp_avg"][1] = 0
    _refuse_not_finite({**checkpoint, "global_step": 7})
