"""Experts that are modules of any kind in `MoE`: each sees the rows that chose it, and no other.

Axes: B batch, T tasks, E experts.
"""

from __future__ import annotations

import copy
from itertools import chain

import pytest
import torch
from torch import Tensor, nn

from recsys_moe import MoE, router

E, SIDE = 8, 12
SIZES = {"input_dim": 2 * SIDE * SIDE, "num_experts": E}


class CNN(nn.Sequential):
    """(R, 2, 12, 12) -> (R, 3, 4); remembers how many rows it has seen."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(2, 3, 5), nn.MaxPool2d(4), nn.ReLU(), nn.Flatten(2))
        self.seen = 0

    def forward(self, image: Tensor) -> Tensor:
        self.seen += len(image)
        return super().forward(image)


def layer_of(*names: str, dispatch: str = "auto", k: int = 2) -> MoE:
    """The same initial weights and draws whatever the dispatch."""
    torch.manual_seed(0)
    settings = [{"k": k} if name != "softmax" else {} for name in names]
    routers = [router(n, **SIZES, **more) for n, more in zip(names, settings, strict=True)]
    return MoE([CNN() for _ in range(E)], routers, dispatch, seed=1).double().train()  # type: ignore[arg-type]


def images(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, 2, SIDE, SIDE, generator=generator, dtype=torch.float64)


def gradients(layer: MoE, x: Tensor, mixed: Tensor) -> list[Tensor]:
    probe = torch.linspace(-1, 1, mixed.numel(), dtype=mixed.dtype).view_as(mixed)
    parameters = [*chain(layer.experts.parameters(), layer.routers.parameters())]
    return list(torch.autograd.grad((mixed * probe).sum(), [x, *parameters]))


@pytest.mark.parametrize("rows", [1, 2, 37])
@pytest.mark.parametrize(
    "names", [("moesart",), ("moesart", "topk"), ("vmoe", "vmoe"), ("pps", "softmax")]
)
def test_chosen_pairs_alone_equal_the_dense_mixture_in_values_and_gradients(
    names: tuple[str, ...], rows: int
) -> None:
    found = {}
    for dispatch in ("sparse", "dense"):
        layer, x = layer_of(*names, dispatch=dispatch), images(rows).requires_grad_()
        mixed, routings = layer(x)
        terms = [
            torch.einsum("be,ebhw->bhw", r.weights_BE, torch.stack([e(x) for e in layer.experts]))
            for r in routings
        ]
        torch.testing.assert_close(mixed, torch.stack(terms, 1))  # the definition
        found[dispatch] = gradients(layer, x, mixed)
    for ours, theirs in zip(found["sparse"], found["dense"], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_an_expert_sees_the_union_of_the_tasks_rows_once_and_no_other() -> None:
    layer = layer_of("topk", "moesart")
    _, routings = layer(images(50))
    union_BE = routings[0].selected_BE | routings[1].selected_BE
    assert [expert.seen for expert in layer.experts] == union_BE.sum(0).tolist()
    assert union_BE.sum() < 50 * 4  # some row's two tasks share an expert


def test_dense_routers_show_all_rows_without_copies() -> None:
    layer = layer_of("softmax", "softmax")
    layer(images(5))
    assert [expert.seen for expert in layer.experts] == [5] * E


def test_an_expert_without_rows_has_a_zero_gradient_and_not_a_missing_one() -> None:
    layer = layer_of("topk")
    mixed, (routing,) = layer(images(1))
    mixed.sum().backward()
    idle = (~routing.selected_BE[0]).nonzero()[:, 0].tolist()
    assert len(idle) == 6  # 8 - k
    for expert in idle:
        assert [float(p.grad.abs().sum()) for p in layer.experts[expert].parameters()] == [0, 0]


def test_draws_and_penalties_are_those_of_a_layer_of_stacked_experts() -> None:
    layer = layer_of("moesart", "moesart")
    twin, x = copy.deepcopy(layer), images(9)
    layer.reseed(7), twin.reseed(7)
    (_, one), (_, two) = layer(x), twin(x)
    assert all(torch.equal(a.selected_BE, b.selected_BE) for a, b in zip(one, two, strict=True))
    assert layer.auxiliary_loss(one, trimmed_lasso=0.1, switch=0.1).requires_grad
    layer.set_epoch(1.0), layer.on_step_end()


@pytest.mark.parametrize("dispatch", ["sparse", "dense"])
def test_an_empty_batch_gives_an_empty_mixture(dispatch: str) -> None:
    assert layer_of("topk", "topk", dispatch=dispatch)(images(0))[0].shape == (0, 2, 3, 4)


@pytest.mark.parametrize(
    ("experts", "name", "num_experts", "said"),
    [
        ([], "topk", E, "experts .*got \\[\\]"),
        ([nn.Flatten()] * 3, "topk", E, "num_experts=3.* got a TopKRouter .*288 and 8"),
        ([nn.Flatten()] * E, "default_moe", E, "needs Experts, got a list"),
    ],
)
def test_what_cannot_be_mixed_is_refused(
    experts: list[nn.Module], name: str, num_experts: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        MoE(experts, [router(name, input_dim=288, num_experts=num_experts)])
