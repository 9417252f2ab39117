"""Which parameters move at which rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys_moe.train.module import RecModule

from .test_train import first_rows, module

LR = 1e-3


def first_moves(data: Path, **optim: Any) -> dict[str, Tensor]:
    """How far the first step moves each parameter."""
    learner: RecModule = module(data, optim={"lr": LR, "eps": 1e-30, **optim})
    optimizer, batch = learner.make_optimizer(), first_rows(data, 64)
    before = {name: value.detach().clone() for name, value in learner.named_parameters()}
    loss, _ = learner.losses(learner.model(batch.user, batch.item), batch.labels)
    loss.backward()
    optimizer.step()
    return {name: value.detach() - before[name] for name, value in learner.named_parameters()}


def test_gates_have_a_rate_of_their_own(prepared: Path) -> None:
    """The first step of Adam is lr in size wherever there is a gradient, whatever that is."""
    for name, move in first_moves(prepared, router_lr_multiplier=10.0).items():
        size = 10 * LR if "routers" in name else LR
        moved = move[move != 0].abs()
        torch.testing.assert_close(moved, torch.full_like(moved, size), rtol=0.01, atol=0)


def test_a_rate_of_one_moves_gates_as_all_else(prepared: Path) -> None:
    usual, one = first_moves(prepared), first_moves(prepared, router_lr_multiplier=1.0)
    for name, move in one.items():
        moved = move[move != 0].abs()
        torch.testing.assert_close(moved, torch.full_like(moved, LR), rtol=0.01, atol=0)
        size = 10 * LR if "routers" in name else LR  # the default
        found = usual[name][usual[name] != 0].abs()
        torch.testing.assert_close(found, torch.full_like(found, size), rtol=0.01, atol=0)


def test_routers_do_not_decay(prepared: Path) -> None:
    """A decay of 1e6 drowns every gradient: the first step is lr towards 0, but for the gates."""
    usual, decayed = first_moves(prepared), first_moves(prepared, weight_decay=1e6)
    for name, move in decayed.items():
        if "bias" not in name:  # which start at 0
            assert move.equal(usual[name]) == ("routers" in name), name
