"""One contract for the layer in loops of others, for every router of the table.

16 bits, batches without rows, copies, pickles, weights of another k, and functional_call; for
torch.utils.checkpoint see test_checkpointing.py. Axes: B batch, T tasks, E experts, D input width,
H expert width.
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from recsys_moe.errors import ConfigError
from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import MoE
from recsys_moe.routers import ROUTERS, Routing, router
from recsys_moe.routers.settings import PENALTY_NAMES

B, D, E, H, TASKS = 24, 6, 4, 5, 2
NAMES = sorted(ROUTERS)
WITH_K = [name for name in NAMES if "k" in ROUTERS[name].Config.model_fields]
USER_B = torch.arange(B)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def layer_of(name: str, seed: int | None = 3, **settings: Any) -> MoE:
    """With dropout, whose draws are replayed as well."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"input_dim": D, "num_experts": E, "num_users": B, "num_tasks": TASKS}
    routers = [router(name, **sizes, task=task, **settings) for task in range(TASKS)]
    return MoE(Experts(E, D, H, dropout=0.5), routers, seed=seed)


def rows(count: int = B) -> Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_work_and_leave_routers_in_32(
    name: str, dtype: torch.dtype, training: bool
) -> None:
    wide, layer = (layer_of(name).train(training) for _ in range(2))
    wide.experts.load_state_dict({k: v.to(dtype) for k, v in wide.experts.state_dict().items()})
    layer = layer.to(dtype)
    assert layer.experts.kernel_EDH.dtype == dtype
    assert all(p.dtype == torch.float32 for p in layer.routers.parameters())
    x_BD = rows().to(dtype)
    (mixed, routings), (wanted, _) = layer(x_BD, USER_B), wide(x_BD.float(), USER_B)
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.float(), wanted, rtol=0.03, atol=0.03)
    (mixed.float().square().mean() + layer.auxiliary_loss(routings, importance=0.1)).backward()
    layer.on_step_end()
    gradients = [p.grad for p in layer.parameters() if p.grad is not None]
    assert gradients and all(g.isfinite().all() for g in gradients)


@contextmanager
def default_of(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_under_a_default_of_16_bits_routers_are_built_and_decide_in_32(
    name: str, dtype: torch.dtype, training: bool
) -> None:
    wide, x_BD = layer_of(name).train(training), rows().to(dtype)
    with default_of(dtype):
        layer = layer_of(name).train(training)
        assert torch.get_default_dtype() == dtype == layer.experts.kernel_EDH.dtype
        assert_alike([*wide.routers.state_dict().values()], [*layer.routers.state_dict().values()])
        assert_alike([*wide.buffers()], [*layer.buffers()])
        mixed, routings = layer(x_BD, USER_B)
        (mixed.float().square().mean() + layer.auxiliary_loss(routings, importance=0.1)).backward()
        layer.on_step_end()
    wide.experts.load_state_dict(layer.experts.state_dict())
    wanted, others = wide(x_BD.float(), USER_B)
    wide.on_step_end()
    assert mixed.dtype == dtype
    assert_alike([*wide.routers.buffers()], [*layer.routers.buffers()])
    assert_alike([one.weights_BE for one in others], [one.weights_BE for one in routings])
    torch.testing.assert_close(mixed.float(), wanted, rtol=0.03, atol=0.03)


def test_64_bits_are_taken_and_given_back(name: str) -> None:
    layer = layer_of(name).double()
    assert all(p.dtype == torch.float64 for p in layer.parameters())
    assert layer(rows().double(), USER_B)[0].dtype == torch.float64
    assert all(p.dtype == torch.float32 for p in layer.float().parameters())


@pytest.mark.parametrize("training", [True, False])
def test_the_auxiliary_loss_of_no_rows_is_0_with_a_gradient_of_0(name: str, training: bool) -> None:
    """Wherever that of rows has one; and what rows refuse is refused."""
    layer = layer_of(name).train(training)
    (_, some), (mixed, none) = (layer(rows(n), USER_B[:n]) for n in (B, 0))
    assert mixed.shape == (0, TASKS, H)
    for weights in [{}, *({penalty: 1.0} for penalty in PENALTY_NAMES)]:
        wanted, loss = (loss_or_refusal(layer, routings, weights) for routings in (some, none))
        if isinstance(wanted, str) or isinstance(loss, str):
            assert loss == wanted
            continue
        assert loss.shape == () and loss == 0 and loss.dtype == wanted.dtype
        assert loss.requires_grad or not wanted.requires_grad
        if loss.requires_grad:
            loss.backward(retain_graph=True)
    if mixed.requires_grad:
        mixed.sum().backward()
    layer.on_step_end()
    for parameter in layer.parameters():
        assert parameter.grad is None or (parameter.grad == 0).all()
    assert all(buffer.isfinite().all() for buffer in layer.buffers())


def loss_or_refusal(
    layer: MoE, routings: Sequence[Routing], weights: dict[str, float]
) -> Tensor | str:
    try:
        return layer.auxiliary_loss(routings, **weights)
    except ConfigError as error:
        return str(error)


def decisions(layer: MoE) -> list[Tensor]:
    """Mixtures of a seeded training step and of evaluation."""
    was, found = layer.training, []
    for training in (True, False):
        layer.train(training).reseed(5)
        found.append(layer(rows(), USER_B)[0].detach())
    layer.train(was)
    return found


def assert_alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    for wanted, found in zip(first, second, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def memory(layer: MoE) -> set[int]:
    """Addresses of all tensors that the layer holds, counts that are no buffers among them."""
    held = [vars(module) for module in layer.modules()]
    held += [part for own in held for part in (own["_parameters"], own["_buffers"])]
    tensors = [value for part in held for value in part.values() if isinstance(value, Tensor)]
    return {tensor.data_ptr() for tensor in tensors if tensor.numel()}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_decide_alike_and_share_nothing(name: str, duplicate: Callable[[MoE], MoE]) -> None:
    layer, twin = layer_of(name), layer_of(name)
    for one in (layer, twin):  # what a step leaves behind must be copied as well
        one(rows(), USER_B)
        one.on_step_end()
        one(rows(), USER_B)
    copied = duplicate(layer)
    assert memory(layer) and not memory(layer) & memory(copied)
    for _ in range(3):
        copied(-rows(), USER_B)
    assert_alike([twin(rows(), USER_B)[0]], [layer(rows(), USER_B)[0]])  # draws are their own
    wanted = decisions(twin)
    assert_alike(wanted, decisions(copied))
    assert_alike(wanted, decisions(layer))
    for one in (layer, twin):
        one.on_step_end()
    assert_alike([*twin.buffers()], [*layer.buffers()])  # and so are counts


def _of_all(layers: dict[str, MoE]) -> dict[str, list[Tensor]]:
    torch.set_num_threads(1)
    return {name: decisions(layer) for name, layer in layers.items()}


@pytest.mark.slow
def test_a_spawned_process_decides_alike() -> None:
    layers = {name: layer_of(name) for name in NAMES}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(_of_all, (layers,))
    for name in NAMES:
        assert_alike(decisions(layers[name]), found[name])


@pytest.mark.parametrize("name", WITH_K)
def test_weights_of_another_k_are_taken_or_refused_with_the_k(name: str) -> None:
    two, three = layer_of(name, k=2), layer_of(name, k=3)
    saved = two.state_dict()
    if all(saved[key].shape == value.shape for key, value in three.state_dict().items()):
        three.load_state_dict(saved)
        wanted = layer_of(name, k=3)
        wanted.load_state_dict({**wanted.state_dict(), **saved})
        assert_alike(decisions(wanted), decisions(three))
        return
    with pytest.raises(RuntimeError, match=rf"router {name} must have the sizes .* of k=3 and"):
        three.load_state_dict(saved)


def test_functional_call_takes_the_weights_it_is_given(name: str) -> None:
    layer, other = layer_of(name), layer_of(name)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.5)
    weights = {key: value.detach().requires_grad_() for key, value in other.named_parameters()}
    layer.reseed(5)
    found, routings = functional_call(layer, weights, (rows(), USER_B))
    other.reseed(5)
    wanted, others = other(rows(), USER_B)
    assert_alike([wanted], [found])
    for mixed, taken in ((found, routings), (wanted, others)):
        (mixed.square().sum() + layer.auxiliary_loss(taken, importance=0.1)).backward()
    gradients = {key: parameter.grad for key, parameter in other.named_parameters()}
    assert any(grad is not None for grad in gradients.values())
    for key, wanted_grad in gradients.items():
        found_grad = weights[key].grad
        assert (found_grad is None) == (wanted_grad is None), key
        if found_grad is not None and wanted_grad is not None:
            assert_alike([wanted_grad], [found_grad])
    assert all(parameter.grad is None for parameter in layer.parameters())
