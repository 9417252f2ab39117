"""The layer under torch.utils.checkpoint, whose second run must decide as the first did.

Axes: B batch, T tasks, D input width, H expert width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._composable.checkpoint_activation import checkpoint as composable
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from recsys_moe.model.moe import MoE
from recsys_moe.routers import replay as replay_module
from tests.model.test_any_loop import NAMES, USER_B, D, H, layer_of, rows

Forward = Callable[[Tensor, Tensor], Tensor]
Segment = Callable[[Forward, Tensor], Tensor]


def again(reentrant: bool) -> Segment:
    return lambda forward, x_BD: checkpoint(forward, x_BD, USER_B, use_reentrant=reentrant)  # type: ignore[no-any-return]


def once(forward: Forward, x_BD: Tensor) -> Tensor:
    return forward(x_BD, USER_B)


def trained(layer: MoE, segment: Segment, *, steps: int = 3) -> list[Tensor]:
    """Losses and gradients of some steps. A step has two segments with the same input, each with
    a dropout of torch's, the layer, and the layer again."""
    inner, found, drop = nn.Linear(D, D), [], nn.Dropout(0.3)
    back = nn.Linear(H, D)

    def forward(x_BD: Tensor, user_B: Tensor) -> Tensor:
        hidden_BD = drop(inner(x_BD))
        for _ in range(2):
            mixed_BTH, routings = layer(hidden_BD, user_B)
            hidden_BD = drop(back(mixed_BTH.sum(1)))
        aux: Tensor = layer.auxiliary_loss(routings, importance=0.1)
        return hidden_BD.square().mean() + aux

    for _ in range(steps):
        x_BD = rows().requires_grad_()
        losses = [segment(forward, x_BD) for _ in range(2)]
        (losses[0] + 2 * losses[1]).backward()
        layer.on_step_end()
        weights = [x_BD, *inner.parameters(), *back.parameters(), *layer.parameters()]
        found += [loss.detach() for loss in losses]
        found += [torch.zeros(()) if w.grad is None else w.grad.clone() for w in weights]
    return [*found, *layer.buffers()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [3, None])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_no_gradient(name: str, reentrant: bool, seed: int | None) -> None:
    """And no loss, no draw after it, and no count."""
    plain = trained(layer_of(name, seed), once)
    for wanted, found in zip(plain, trained(layer_of(name, seed), again(reentrant)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)  # sums in another order


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_checkpoints_inside_checkpoints_change_no_gradient(outer: bool, inner: bool) -> None:
    def nested(forward: Forward, x_BD: Tensor) -> Tensor:
        whole: Segment = again(outer)
        return whole(lambda x_BD, user_B: again(inner)(forward, x_BD), x_BD)

    plain = trained(layer_of("moesart"), once)
    for wanted, found in zip(plain, trained(layer_of("moesart"), nested), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)  # sums in another order


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_second_backward_replays_again(reentrant: bool) -> None:
    def gradients(segment: Segment) -> list[Tensor]:
        layer, x_BD = layer_of("moesart"), rows().requires_grad_()
        loss = segment(lambda x_BD, user_B: layer(x_BD, user_B)[0].square().mean(), x_BD)
        loss.backward(retain_graph=True)
        loss.backward()
        assert x_BD.grad is not None
        return [x_BD.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]

    for wanted, found in zip(gradients(once), gradients(again(reentrant)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)  # sums in another order


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_state_that_moved_before_backward_is_refused(reentrant: bool) -> None:
    layer, x_BD = layer_of("loss_free"), rows().requires_grad_()
    loss = again(reentrant)(lambda x_BD, user_B: layer(x_BD, user_B)[0].sum(), x_BD)
    layer.on_step_end()
    with pytest.raises(RuntimeError, match=r"on_step_end must be called after backward .*; move"):
        loss.backward()


def test_a_second_run_by_others_is_refused() -> None:
    """Whose first run nobody noted: here a hook, elsewhere another checkpointing library."""
    layer, x_BD = layer_of("moesart"), rows().requires_grad_()
    x_BD.register_hook(lambda grad: layer(rows(), USER_B)[0].sum() + grad)
    with pytest.raises(RuntimeError, match=r"evaluation mode inside a backward .*layer\.eval\(\)"):
        x_BD.sum().backward()
    layer.eval()
    x_BD.sum().backward()


def test_a_second_run_that_draws_more_is_refused() -> None:
    layer, x_BD, runs = layer_of("moesart"), rows().requires_grad_(), []

    def forward(x_BD: Tensor, user_B: Tensor) -> Tensor:
        runs.append(1)
        for _ in range(len(runs)):
            mixed: Tensor = layer(x_BD, user_B)[0]
        return mixed.sum()

    loss = again(True)(forward, x_BD)
    with pytest.raises(RuntimeError, match=r"must draw as often .* more than the 1 of its first"):
        loss.backward()


def functions(code: CodeType, path: str = "") -> Iterator[tuple[str, CodeType]]:
    """All functions of a module by their path, such as Class.method.inner."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield path + inner.co_name, inner
            yield from functions(inner, f"{path}{inner.co_name}.")


def segments_read(source: str) -> dict[str, list[Any]]:
    """By the path of a function of torch.utils.checkpoint: what is read of its variables."""
    codes = dict(functions(compile(source, "checkpoint.py", "exec")))

    def running(path: str, **known: Any) -> dict[str, Any]:
        code = codes.get(path)
        names = code.co_varnames + code.co_cellvars + code.co_freevars if code else ()
        return {name: known.get(name, name) for name in names}

    inner = SimpleNamespace(f_locals=running("_checkpoint_without_reentrant_generator"))
    gen = SimpleNamespace(gi_frame=inner)
    read = {
        path: replay_module._segments_of(code.co_name, running(path, gen=gen))
        for path, code in codes.items()
    }
    return {
        path: [found.owner for found in segments] for path, segments in read.items() if segments
    }


READ = {
    "CheckpointFunction.forward": ["ctx"],
    "CheckpointFunction.backward": ["ctx"],
    "checkpoint": ["new_frame"],
    "_checkpoint_hook.__init__.unpack_hook": ["frame"],
}
SOURCE = Path(torch.utils.checkpoint.__file__).read_text()


def test_the_functions_that_are_read_are_those_of_torch() -> None:
    """Where torch renames one or its variables, the tests above fail; this one says which."""
    assert segments_read(SOURCE) == READ


@pytest.mark.parametrize(
    "name",
    ["forward", "backward", "ctx", "checkpoint", "gen", "new_frame", "unpack_hook", "frame", "gid"],
)
def test_a_function_or_variable_of_another_name_would_be_noticed(name: str) -> None:
    try:
        found = segments_read(re.sub(rf"\b{name}\b", "renamed", SOURCE))
    except KeyError:
        return
    assert found != READ


class Block(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer, self.back, self.drop = layer_of(name), nn.Linear(H, D), nn.Dropout(0.3)

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.drop(self.back(self.layer(x_BD, USER_B)[0].sum(1)))  # type: ignore[no-any-return]


def block_by_block(name: str, run: Callable[[nn.Sequential, Tensor], Tensor]) -> list[Tensor]:
    """The outcome and the gradients of two steps of four layers, and what those learned."""
    blocks, found = nn.Sequential(*(Block(name) for _ in range(4))), []
    for _ in range(2):
        x_BD = rows().requires_grad_()
        outcome = run(blocks, x_BD)
        outcome.square().mean().backward()
        for block in blocks:
            block.layer.on_step_end()
        found += [outcome.detach(), x_BD.grad]
        found += [w.grad.clone() for w in blocks.parameters() if w.grad is not None]
    return [*found, *blocks.buffers()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_sequential_changes_no_gradient(name: str, reentrant: bool) -> None:
    def in_two(blocks: nn.Sequential, x_BD: Tensor) -> Tensor:
        return checkpoint_sequential(blocks, 2, x_BD, use_reentrant=reentrant)  # type: ignore[no-any-return]

    plain = block_by_block(name, lambda blocks, x_BD: blocks(x_BD))
    for wanted, found in zip(plain, block_by_block(name, in_two), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)  # sums in another order


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("saved", [["mm", "addmm"], ["add", "sum", "cat"]])
def test_selective_checkpointing_changes_no_gradient(name: str, saved: list[str]) -> None:
    """That saves some results of the first run and tells them by how often an operation ran."""
    overloads = [getattr(torch.ops.aten, op) for op in saved]
    kept = [getattr(op, kind) for op in overloads for kind in op.overloads()]
    contexts = partial(create_selective_checkpoint_contexts, kept)

    def selected(blocks: nn.Sequential, x_BD: Tensor) -> Tensor:
        more: dict[str, Any] = {"use_reentrant": False, "context_fn": contexts}
        return checkpoint(blocks, x_BD, **more)  # type: ignore[no-any-return]

    plain = block_by_block(name, lambda blocks, x_BD: blocks(x_BD))
    for wanted, found in zip(plain, block_by_block(name, selected), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)  # sums in another order


def test_wrappers_whose_first_run_is_not_seen_are_refused() -> None:
    block = composable(Block("moesart"))
    outcome = block(rows().requires_grad_()).sum()
    with pytest.raises(RuntimeError, match=r"by checkpoint or checkpoint_sequential of torch"):
        outcome.backward()
