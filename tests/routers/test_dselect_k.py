"""DSelect-k against golden numbers: smooth-step, codes, weights, losses, sparsity by saturation.

Axes: B batch, E experts, K selectors, M bits of an expert's index.
"""

from __future__ import annotations

import math

import pytest
import torch

from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import MoE
from recsys_moe.routers import Routing
from recsys_moe.routers.base import RouterShape
from recsys_moe.routers.dselect_k import DSelectKRouter
from recsys_moe.routers.smooth_step import entropy, smooth_step

# Selector 0 has bits z = .25, -.1, selector 1 has -.5, .1; v = [1, 0]; gamma = 1.
BITS = [0.25, -0.1, -0.5, 0.1]


def router(num_experts: int = 4, **settings: object) -> DSelectKRouter:
    """Of one input, whose bits and selector logits are their biases."""
    made = DSelectKRouter(DSelectKRouter.Config(**settings), RouterShape(1, num_experts)).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    return made


def golden(num_experts: int) -> tuple[DSelectKRouter, Routing]:
    made = router(num_experts)
    with torch.no_grad():
        made.bit_gate.bias.copy_(torch.tensor(BITS))
        made.selector_gate.bias.copy_(torch.tensor([1.0, 0.0]))
    return made, made(torch.zeros(1, 1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("t", "gamma", "value"),
    [
        (-0.5, 1.0, 0.0),
        (-0.25, 1.0, 0.15625),
        (0.0, 1.0, 0.5),
        (0.1, 1.0, 0.648),  # .5 + 3 * .1 / 2 - 2 * .1^3 = .5 + .15 - .002
        (0.25, 1.0, 0.84375),
        (0.5, 1.0, 1.0),
        (1.0, 10.0, 0.648),
        (0.02, 0.1, 0.784),  # .5 + 3 * .2 / 2 - 2 * .2^3 = .5 + .3 - .016
        (3.0, 1.0, 1.0),
    ],
)
def test_smooth_step_is_the_cubic_of_the_paper(t: float, gamma: float, value: float) -> None:
    t_1 = torch.tensor(t, dtype=torch.float64)
    assert smooth_step(t_1, gamma).item() == pytest.approx(value, abs=1e-12)
    assert smooth_step(-t_1, gamma).item() == pytest.approx(1 - value, abs=1e-12)


def test_smooth_step_never_leaves_0_to_1_and_reaches_both_exactly() -> None:
    t = torch.linspace(-0.51, 0.51, 100_001)
    step = smooth_step(t, 1.0)
    assert (step >= 0).all() and (step <= 1).all()
    assert (step[t <= -0.5] == 0).all() and (step[t >= 0.5] == 1).all()


def test_golden_weights_and_entropy_for_a_power_of_two() -> None:
    _, routing = golden(4)
    # selectors weigh softmax([1, 0]) = [.731059, .268941]; w_0 = .731059 * .10125 + .268941 * .352
    weights = [0.168687, 0.214482, 0.399706, 0.217124]
    assert routing.weights_BE[0].tolist() == pytest.approx(weights, abs=1e-6)
    assert routing.losses["entropy"].item() == pytest.approx(1.730745, abs=1e-6)
    assert routing.losses["unused_codes"].item() == 0
    torch.testing.assert_close(routing.probs_BE, routing.weights_BE)


def test_codes_without_an_expert_are_dropped_and_penalised() -> None:
    _, routing = golden(3)
    weights = [0.168687, 0.214482, 0.399706]
    assert routing.weights_BE[0].tolist() == pytest.approx(weights, abs=1e-6)
    assert routing.weights_BE.sum().item() == pytest.approx(0.782876, abs=1e-6)
    # 1 / (1e-6 + .703) + 1 / (1e-6 + 1) = 1.422473 + .999999
    assert routing.losses["unused_codes"].item() == pytest.approx(2.422472, abs=1e-6)
    assert routing.probs_BE is not None
    assert routing.probs_BE.sum().item() == pytest.approx(1)


def test_the_losses_are_means_over_the_batch() -> None:
    made, one = golden(3)
    many = made(torch.zeros(7, 1, dtype=torch.float64))
    for name, loss in one.losses.items():
        assert many.losses[name].item() == pytest.approx(loss.item())
    weighted = router(3, entropy=0.7, unused_codes=0.3)
    assert weighted.loss_weights == {"entropy": 0.7, "unused_codes": 0.3}
    assert set(weighted.loss_weights) == set(many.losses)


def saturated(num_experts: int, bits: list[float], **settings: object) -> Routing:
    made = router(num_experts, **settings)
    with torch.no_grad():
        made.bit_gate.bias.copy_(torch.tensor(bits))
    return made(torch.zeros(1, 1, dtype=torch.float64))


def test_saturated_selectors_select_k_experts_or_fewer() -> None:
    # codes 10 and 01: experts 2 and 1 with equal shares, as v = 0
    apart = saturated(4, [0.5, -0.5, -9.0, 9.0])
    assert apart.selected_BE.tolist() == [[False, True, True, False]]
    assert apart.weights_BE.tolist() == [[0.0, 0.5, 0.5, 0.0]]
    assert apart.losses["entropy"].item() == pytest.approx(0, abs=1e-5)
    both = saturated(4, [0.5, -0.5, 0.5, -0.5])
    assert both.selected_BE.sum().item() == 1
    assert both.weights_BE.tolist() == [[0.0, 0.0, 1.0, 0.0]]


def test_the_layer_turns_sparse_by_itself_once_the_selectors_saturate() -> None:
    torch.manual_seed(0)
    made = DSelectKRouter(DSelectKRouter.Config(), RouterShape(3, 8))
    layer = MoE(Experts(8, 3, 4, dropout=0.0), [made])
    x_BD = torch.randn(6, 3)
    assert not layer._is_sparse(made(x_BD).selected_BE[:, None])
    with torch.no_grad():
        made.bit_gate.bias.fill_(9.0)
    assert layer._is_sparse(made(x_BD).selected_BE[:, None])
    dense = MoE(layer.experts, [made], dispatch="dense")
    user_B = torch.zeros(6, dtype=torch.long)
    torch.testing.assert_close(layer(x_BD, user_B)[0], dense(x_BD, user_B)[0])


def test_saturated_bits_have_exactly_no_gradient() -> None:
    made, routing = golden(4)
    routing.weights_BE[0, 2].backward()
    gradient = made.bit_gate.bias.grad
    assert gradient is not None
    assert gradient[2] == 0 and (gradient[[0, 1]] != 0).all()


def test_selectors_that_all_point_to_no_expert_give_an_empty_selection() -> None:
    routing = saturated(3, [9.0, 9.0, 9.0, 9.0])
    assert not routing.selected_BE.any() and (routing.weights_BE == 0).all()
    assert routing.probs_BE is not None
    assert routing.probs_BE.tolist() == [pytest.approx([1 / 3] * 3)]


def test_before_training_every_expert_is_selected() -> None:
    torch.manual_seed(0)
    made = DSelectKRouter(DSelectKRouter.Config(), RouterShape(8, 9))
    routing = made(torch.randn(5, 8) / 20)
    assert routing.selected_BE.all() and made.max_selected == 9
    assert (made.bit_gate.weight.abs() <= 1.0 / 100).all()  # gamma / 100
    assert (made.selector_gate.weight.abs() <= 0.05).all()


def test_entropy_is_0_for_a_choice_and_log_n_for_none() -> None:
    assert entropy(torch.tensor([1.0, 0.0])).sum().item() == pytest.approx(0, abs=2e-6)
    assert entropy(torch.full((4,), 0.25)).sum().item() == pytest.approx(math.log(4), abs=1e-4)
