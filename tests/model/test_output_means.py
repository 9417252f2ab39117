"""Expert output means: equal to the definition, moved once in a step.

Axes: B batch, T tasks, E experts, D input width, H expert width.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe import MoE, mix, router
from recsys_moe.errors import ConfigError
from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import naive_moe

B, D, E, H = 11, 5, 6, 7


def layer_of(
    dispatch: Any = "auto", *, dropout: float = 0.0, name: str = "default_moe", **settings: Any
) -> MoE:
    """Two tasks, means of size 1, float64."""
    torch.manual_seed(0)
    routers = [router(name, input_dim=D, num_experts=E, **settings) for _ in range(2)]
    layer = MoE(Experts(E, D, H, dropout), routers, dispatch, seed=0).double().train()
    if layer.output_means is not None:
        layer.output_means.mean_EH.normal_()
    return layer


def batch(rows: int = B, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, D, generator=generator, dtype=torch.float64)


def outputs_of(layer: MoE, x_BD: Tensor) -> Tensor:
    """E_i(x) for all: (B, E, H)."""
    everyone = torch.eye(E, dtype=x_BD.dtype).expand(len(x_BD), -1, -1)
    return naive_moe(x_BD, everyone, layer.experts.kernel_EDH, layer.experts.bias_EH)


def naive(layer: MoE, x_BD: Tensor) -> Tensor:
    """sum over chosen g_i E_i(x) + sum over the others g_i m_i, with g a dense softmax."""
    assert layer.output_means is not None
    output_BEH, mixed = outputs_of(layer, x_BD), []
    for own in layer.routers:
        g_BE = own.gate(x_BD).softmax(-1)  # type: ignore[operator]
        top_BK = g_BE.topk(2, -1).indices
        chosen_BE1 = torch.zeros_like(g_BE).scatter(-1, top_BK, 1.0)[:, :, None]
        answer_BEH = chosen_BE1 * output_BEH + (1 - chosen_BE1) * layer.output_means.mean_EH
        mixed.append((g_BE[:, :, None] * answer_BEH).sum(1))
    return torch.stack(mixed, 1)


@pytest.mark.parametrize("dispatch", ["sparse", "dense"])
def test_the_layer_equals_its_naive_twin_in_values_and_gradients(dispatch: str) -> None:
    """Though the means move between forward and backward, as they do in a training step."""
    layer, x_BD = layer_of(dispatch), batch().requires_grad_()
    leaves = [x_BD, *layer.parameters()]
    expected_BTH = naive(layer, x_BD)
    probe_BTH = torch.randn_like(expected_BTH)
    expected = torch.autograd.grad((expected_BTH * probe_BTH).sum(), leaves)
    found_BTH, _ = layer(x_BD)
    layer.on_step_end()
    found = torch.autograd.grad((found_BTH * probe_BTH).sum(), leaves)
    torch.testing.assert_close(found_BTH, expected_BTH)
    for ours, naive_gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, naive_gradient)
    assert (found[-2] != 0).all()  # a gate: every logit has a gradient


@pytest.mark.parametrize("dispatch", ["sparse", "dense"])
def test_means_move_by_a_tenth_to_the_mean_of_the_pairs_that_any_task_chose(dispatch: str) -> None:
    layer, x_BD = layer_of(dispatch, momentum=0.9), batch(2)
    assert layer.output_means is not None
    before_EH = layer.output_means.mean_EH.clone()
    _, routings = layer(x_BD)
    assert torch.equal(layer.output_means.mean_EH, before_EH)
    layer.on_step_end()
    chosen_BE = routings[0].selected_BE | routings[1].selected_BE
    assert not chosen_BE.any(0).all() and chosen_BE.any(0).any()  # some expert is not visited
    output_BEH = outputs_of(layer, x_BD).detach()
    for expert in range(E):
        rows_B = chosen_BE[:, expert]
        mean_H = before_EH[expert]
        if rows_B.any():
            mean_H = 0.9 * mean_H + 0.1 * output_BEH[rows_B, expert].mean(0)
        torch.testing.assert_close(layer.output_means.mean_EH[expert], mean_H)
    layer.on_step_end()  # nothing was counted since
    torch.testing.assert_close(layer.output_means.mean_EH[expert], mean_H)


@pytest.mark.parametrize("dispatch", ["sparse", "dense"])
def test_processes_and_passes_count_as_one_batch(dispatch: str) -> None:
    """The parts [:4] and [4:] on two processes, and one after the other in one: their sums add."""
    whole, *parts = (layer_of(dispatch) for _ in range(4))
    whole(batch())
    whole.on_step_end()
    assert whole.output_means is not None
    parts[0](batch()[:4])
    parts[1](batch()[4:])
    sums: list[Tensor] = []
    for part in parts[:2]:
        part.on_step_end(lambda values: (sums.append(values), values)[1])
    one = layer_of(dispatch)
    one.on_step_end(lambda _: sums[0] + sums[1])  # a process without rows has to join in
    parts[2](batch()[:4])
    parts[2](batch()[4:])
    parts[2].on_step_end()
    for other in (one, parts[2]):
        assert other.output_means is not None
        torch.testing.assert_close(other.output_means.mean_EH, whole.output_means.mean_EH)


@pytest.mark.parametrize("dispatch", ["sparse", "dense"])
@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_with_dropout_the_mean_is_that_of_evaluation_in_expectation(
    dispatch: str, rate: float
) -> None:
    """20,000 equal rows; a unit of output a has the variance a^2 rate / (1 - rate)."""
    layer = layer_of(dispatch, dropout=rate, momentum=0.0)
    x_BD = batch(1).expand(20_000, -1)
    _, routings = layer(x_BD)
    layer.on_step_end()
    chosen_E = (routings[0].selected_BE | routings[1].selected_BE)[0]
    expected_EH = outputs_of(layer, x_BD[:1])[0].detach()[chosen_E]
    assert layer.output_means is not None
    error_EH = (layer.output_means.mean_EH[chosen_E] - expected_EH).abs()
    assert (error_EH <= 5 * expected_EH * (rate / (1 - rate) / 20_000) ** 0.5 + 1e-9).all()


def test_under_bf16_autocast_sums_stay_float32() -> None:
    """1,000 times the same output: its sum in bf16 would be wrong by percents."""
    means = []
    for dispatch in ("sparse", "dense"):
        layer = layer_of(dispatch, momentum=0.0).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, routings = layer(batch(1).float().expand(1000, -1))
        layer.on_step_end()
        chosen_E = (routings[0].selected_BE | routings[1].selected_BE)[0]
        output_EH = outputs_of(layer, batch(1).float())[0].detach()
        assert layer.output_means is not None and layer.output_means.mean_EH.dtype == torch.float32
        means.append(layer.output_means.mean_EH[chosen_E])
        torch.testing.assert_close(means[-1], output_EH[chosen_E], rtol=0.01, atol=0.01)
    torch.testing.assert_close(*means, rtol=0.01, atol=0.01)


def test_evaluation_uses_the_means_and_leaves_them() -> None:
    layer = layer_of().eval()
    assert layer.output_means is not None
    before_EH = layer.output_means.mean_EH.clone()
    mixed_BTH, _ = layer(batch())
    layer.on_step_end()
    assert torch.equal(layer.output_means.mean_EH, before_EH)
    torch.testing.assert_close(mixed_BTH, naive(layer, batch()))


@pytest.mark.parametrize("dispatch", ["sparse", "dense"])
@pytest.mark.parametrize("training", [True, False])
def test_no_row_is_no_mixture_and_moves_nothing(dispatch: str, training: bool) -> None:
    layer = layer_of(dispatch).train(training)
    assert layer.output_means is not None
    before_EH = layer.output_means.mean_EH.clone()
    assert layer(batch(0))[0].shape == (0, 2, H)
    layer.on_step_end()
    assert torch.equal(layer.output_means.mean_EH, before_EH)


def test_only_routers_with_a_momentum_make_a_layer_keep_means() -> None:
    assert "output_means.mean_EH" in layer_of().state_dict()
    other = layer_of(name="topk")
    assert other.output_means is None and not any("mean" in key for key in other.state_dict())


def test_one_task_may_have_means_and_another_none() -> None:
    own = [router(name, input_dim=D, num_experts=E) for name in ("default_moe", "topk")]
    layer = MoE(Experts(E, D, H), own).eval()
    assert layer.output_means is not None
    x_BD = batch().float()
    before_BTH, _ = layer(x_BD)
    layer.output_means.mean_EH.fill_(1.0)
    mixed_BTH, routings = layer(x_BD)
    left_B1 = 1 - routings[0].weights_BE.sum(-1, keepdim=True)
    torch.testing.assert_close(mixed_BTH[:, 0], before_BTH[:, 0] + left_B1)
    assert torch.equal(mixed_BTH[:, 1], before_BTH[:, 1])


def test_weights_of_means_need_a_momentum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = router("default_moe", input_dim=D, num_experts=E)
    monkeypatch.setattr(type(own), "mean_momentum", None)
    with pytest.raises(ConfigError, match="DefaultMoERouter .*mean_momentum, got None"):
        MoE(Experts(E, D, H), [own])(batch().float())


def test_what_cannot_be_is_refused_in_words() -> None:
    sizes = {"input_dim": D, "num_experts": E}
    own = [router("default_moe", **sizes, momentum=momentum) for momentum in (0.5, 0.9)]
    with pytest.raises(ValueError, match=r"the same .*got \[0.5"):
        MoE(Experts(E, D, H), own)
    x_BD = batch().float()
    with pytest.raises(ValueError, match="mix has no expert output means"):
        mix(own[0](x_BD), [x_BD] * E)
