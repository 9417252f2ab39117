"""Every fast path equals the naive mixture in values and gradients.

Axes: B batch, T tasks, E experts, D input width, H expert width.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.errors import ConfigError
from recsys_moe.model import pair_plan
from recsys_moe.model.dispatch import dense_experts, sparse_experts
from recsys_moe.model.experts import Dropout, Experts
from recsys_moe.model.moe import MoE, naive_moe
from recsys_moe.model.static_dispatch import static_experts
from recsys_moe.routers import RouterShape, Routing
from recsys_moe.routers.topk import TopKRouter

D, H = 5, 7


def problem(rows: int, tasks: int, experts: int, seed: int) -> tuple[Tensor, ...]:
    """Random x, sparse weights, kernels and biases in float64, all needing gradients."""
    g = torch.Generator().manual_seed(seed)
    x_BD = torch.randn(rows, D, generator=g, dtype=torch.float64)
    selected_BTE = torch.rand(rows, tasks, experts, generator=g) < 0.4
    weights_BTE = torch.rand(rows, tasks, experts, generator=g, dtype=torch.float64) * selected_BTE
    kernel_EDH = torch.randn(experts, D, H, generator=g, dtype=torch.float64)
    bias_EH = torch.randn(experts, H, generator=g, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (x_BD, weights_BTE, kernel_EDH, bias_EH)]
    return (*leaves, selected_BTE)


def pool(kernel_EDH: Tensor, bias_EH: Tensor, dropout: Dropout | None = None) -> Experts:
    """Experts with these very tensors, so that gradients reach them; by default all units stay."""
    off = Dropout(0.5).eval()
    return SimpleNamespace(kernel_EDH=kernel_EDH, bias_EH=bias_EH, dropout=dropout or off)  # type: ignore[return-value]


WAYS = {"a block per load": (0, 0.0), "one block": (10**9, 1.0), "as planned": (3, 1.0)}
"""Cost of a block, and how much cheaper a cut must be: the extremes, and one in between."""


def cut_by(patch: pytest.MonkeyPatch, way: str) -> None:
    for name, value in zip(("CPU_BLOCK", "WORTH"), WAYS[way], strict=True):
        patch.setattr(pair_plan, name, value)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 6), st.integers(0, 10**6))
def test_sparse_and_dense_equal_naive_in_values_and_gradients(
    way: str, rows: int, tasks: int, experts: int, seed: int
) -> None:
    """Also with rows that no expert is chosen for and experts that no row chose."""
    with pytest.MonkeyPatch.context() as patch:
        cut_by(patch, way)
        check_against_naive(rows, tasks, experts, seed)


def check_against_naive(rows: int, tasks: int, experts: int, seed: int) -> None:
    *leaves, selected_BTE = problem(rows, tasks, experts, seed)
    x_BD, weights_BTE, kernel_EDH, bias_EH = leaves
    outputs = [
        naive_moe(x_BD, weights_BTE, kernel_EDH, bias_EH),
        sparse_experts(x_BD, weights_BTE, selected_BTE, pool(kernel_EDH, bias_EH)),
        dense_experts(x_BD, weights_BTE, pool(kernel_EDH, bias_EH)),
        static_experts(x_BD, weights_BTE, selected_BTE, pool(kernel_EDH, bias_EH), experts),
    ]
    probe = torch.randn(outputs[0].shape, dtype=torch.float64)
    expected, *found = [torch.autograd.grad((out * probe).sum(), leaves) for out in outputs]
    for out, grads in zip(outputs[1:], found, strict=True):
        torch.testing.assert_close(out, outputs[0])
        mask = selected_BTE
        for name, ours, naive in zip("xwkb", grads, expected, strict=True):
            # The sparse path gives unselected weights no gradient: no router could use it.
            torch.testing.assert_close(
                ours * mask if name == "w" else ours, naive * mask if name == "w" else naive
            )


class Foreign(TopKRouter):
    """Stands for a router of somebody else's that returns what it was given."""

    def __init__(self, result: object) -> None:
        super().__init__(TopKRouter.Config(), RouterShape(D, 3))
        self.result = result

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> object:  # type: ignore[override]
        return self.result


def test_what_is_no_router_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"must .*got a Linear"):
        MoE(Experts(3, D, H), [torch.nn.Linear(D, 3)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (torch.ones(2, 3), "must .*got Tensor"),
        (Routing(torch.ones(2, 4), torch.ones(2, 4) > 0), r"num_experts=3\), got shape \(2, 4\)"),
        (Routing(torch.ones(2, 3), torch.ones(2) > 0), "selected_BE of router Foreign must be"),
    ],
)
def test_a_foreign_router_with_a_wrong_result_is_named(result: object, said: str) -> None:
    layer = MoE(Experts(3, D, H, 0.0), [Foreign(result)])
    with pytest.raises(ConfigError, match=said):
        layer(torch.ones(2, D), torch.zeros(2, dtype=torch.long))


def test_only_chosen_pairs_are_evaluated_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    baddbmm = torch.baddbmm

    def counting(bias: Tensor, x: Tensor, kernel: Tensor, out: Tensor) -> Tensor:
        rows.append(x.shape[:2].numel())
        return baddbmm(bias, x, kernel, out=out)

    *leaves, selected_BTE = problem(9, 2, 6, seed=4)
    x_BD, weights_BTE, kernel_EDH, bias_EH = leaves
    monkeypatch.setattr(torch, "baddbmm", counting)
    cut_by(monkeypatch, "a block per load")
    sparse_experts(x_BD, weights_BTE, selected_BTE, pool(kernel_EDH, bias_EH))
    # not the sum over tasks: shared pairs count once
    assert sum(rows) == int(selected_BTE.any(1).sum())


@pytest.mark.parametrize("way", WAYS)
def test_an_unvisited_expert_has_a_zero_gradient_and_not_a_missing_one(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_by(monkeypatch, way)
    layer = Experts(3, D, H, dropout=0.0)
    selected_BTE = torch.tensor([[[True, False, False]]])
    weights_BTE = selected_BTE.float()
    x_BD = torch.randn(1, D)
    out = sparse_experts(x_BD, weights_BTE, selected_BTE, layer)
    out.sum().backward()
    for parameter in (layer.kernel_EDH, layer.bias_EH):
        assert parameter.grad is not None and (parameter.grad[1:] == 0).all()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_same_share_in_every_lane(rate: float) -> None:
    """2**17 draws each: five standard errors of a share p are 5 sqrt(p (1 - p) / 2**17).

    Lanes: columns of 8 are the bytes of a word, where one byte decides; eighths of the mask are
    the bits of a byte, where one bit does.
    """
    dropout = Dropout(rate)
    dropout.train()
    mask = dropout.mask((2**17, 8), torch.empty(0))
    assert mask is not None and set(mask.unique().tolist()) == {0, 1}
    keep = dropout.keep_of_256 / 256
    tolerance = 5 * (keep * (1 - keep) / 2**17) ** 0.5
    for lanes in (mask.view(-1, 8), mask.view(8, -1).t()):
        assert lanes.double().mean(0).tolist() == pytest.approx([keep] * 8, abs=tolerance)
    assert keep == pytest.approx(1 - rate, abs=1 / 512)


def test_coins_of_one_byte_are_independent() -> None:
    """Pairs of bits agree half of the time: 28 pairs, 2**17 draws each, five standard errors."""
    mask = Dropout(0.5).train().mask((8, 2**17), torch.empty(0))
    assert mask is not None
    signs = 2 * mask - 1
    correlation = signs @ signs.t() / 2**17
    assert (correlation - torch.eye(8)).abs().max() < 5 / 2 ** (17 / 2)


@pytest.mark.parametrize("rate", [0.3, 0.5])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 9)])
def test_masks_of_odd_sizes_have_their_shape(rate: float, shape: tuple[int, int]) -> None:
    mask = Dropout(rate).train().mask(shape, torch.empty(0))
    assert mask is not None and mask.shape == shape and mask.is_contiguous()


@pytest.mark.parametrize("path", ["sparse", "dense"])
def test_training_output_equals_the_evaluation_output_in_expectation(path: str) -> None:
    """For a linear probe of 20,000 equal rows; the activations are scaled by the exact inverse."""
    torch.manual_seed(0)
    layer = Experts(2, D, 64, dropout=0.5).double()
    x_BD = torch.randn(1, D, dtype=torch.float64).expand(20_000, -1).contiguous()
    weights_BTE = torch.full((20_000, 1, 2), 0.5, dtype=torch.float64)

    def mean() -> Tensor:
        if path == "dense":
            return dense_experts(x_BD, weights_BTE, layer).mean()
        return sparse_experts(x_BD, weights_BTE, weights_BTE > 0, layer).mean()

    torch.testing.assert_close(layer.train() and mean(), layer.eval() and mean(), rtol=5e-3, atol=0)


def assert_alike(out: Tensor, expected: Tensor, leaves: list[Tensor], selected_BTE: Tensor) -> None:
    """Values and gradients; those of weights off the selection say nothing."""
    torch.testing.assert_close(out, expected)
    probe = torch.randn(out.shape, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((o * probe).sum(), leaves) for o in (out, expected))
    for name, a, b in zip("xwkb", ours, theirs, strict=True):
        mask_BTE = selected_BTE if name == "w" else torch.ones(())
        torch.testing.assert_close(a * mask_BTE, b * mask_BTE)


def masked_naive(
    x_BD: Tensor, weights_BTE: Tensor, kernel_EDH: Tensor, bias_EH: Tensor, keep_BEH: Tensor
) -> Tensor:
    """The mixture with a given mask, kept activations scaled by 2: rate 0.5."""
    hidden_BEH = torch.relu(torch.einsum("bd,edh->beh", x_BD, kernel_EDH) + bias_EH)
    return torch.einsum("bte,beh->bth", weights_BTE, 2 * keep_BEH * hidden_BEH)


@pytest.mark.parametrize("way", [*WAYS, "dense"])
def test_dropped_units_carry_neither_value_nor_gradient(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the definition with the mask that the way itself drew, by its seed."""
    *leaves, selected_BTE = problem(8, 2, 4, seed=7)
    dropout = Dropout(0.5).train()
    if way != "dense":
        cut_by(monkeypatch, way)
    plan = pair_plan.plan_pairs(selected_BTE)
    shape = (4, 8, H) if way == "dense" else (len(plan.row_P), H)
    dropout.stream.reseed(3)
    mask = dropout.mask(shape, leaves[0])
    assert mask is not None
    if way == "dense":
        keep_BEH = mask.transpose(0, 1)
    else:
        chosen_BE = selected_BTE.any(1)
        keep_BEH = torch.zeros(8, 4, H)
        pair_EB = torch.zeros(4, 8, dtype=torch.long)
        pair_EB[chosen_BE.t()] = plan.real_R  # by expert, then row
        keep_BEH[chosen_BE] = mask[pair_EB.t()[chosen_BE]]
    expected = masked_naive(*leaves, keep_BEH)
    dropout.stream.reseed(3)
    x_BD, weights_BTE, *parts = leaves
    if way == "dense":
        out = dense_experts(x_BD, weights_BTE, pool(*parts, dropout))
    else:
        out = sparse_experts(x_BD, weights_BTE, selected_BTE, pool(*parts, dropout))
    assert_alike(out, expected, leaves, selected_BTE)


def test_auto_is_dense_where_nearly_all_is_chosen_and_while_compiling() -> None:
    def is_sparse(k: int, experts: int) -> bool:
        routers = [TopKRouter(TopKRouter.Config(k=k), RouterShape(D, experts))]
        layer = MoE(Experts(experts, D, H, 0.0), routers)
        return layer._is_sparse(torch.ones(1, 1, experts) > 0)

    assert is_sparse(2, 16) and is_sparse(13, 16)  # 13 / 16 = 0.81 < 0.85
    assert not is_sparse(15, 16)  # 0.94, and the mask is full


def test_a_rate_close_to_one_keeps_one_in_256() -> None:
    dropout = Dropout(0.999).train()
    assert dropout.keep_of_256 == 1 and dropout.scale == 256


def test_dropout_is_reproducible_under_its_seed_and_off_in_evaluation() -> None:
    dropout = Dropout(0.5).eval()
    assert dropout.mask((4, 4), torch.empty(0)) is None and dropout.scale == 1
    dropout.train()
    masks = []
    for seed in (1, 1, 2):
        dropout.stream.reseed(seed)
        masks.append(dropout.mask((16, 16), torch.empty(0)))
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])


def test_bf16_autocast_stays_close_to_float32() -> None:
    *leaves, selected_BTE = problem(9, 2, 6, seed=1)
    x_BD, weights_BTE, kernel_EDH, bias_EH = (leaf.detach().float() for leaf in leaves)
    args = (x_BD, weights_BTE, selected_BTE, pool(kernel_EDH, bias_EH))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = sparse_experts(*args)
    torch.testing.assert_close(half.float(), sparse_experts(*args), rtol=0.05, atol=0.1)
