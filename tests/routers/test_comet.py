"""COMET against golden numbers: leaf probabilities, joint softmax, permutation option.

Axes: B batch, E experts (leaves), K trees, N = E - 1 splits of a tree.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys_moe.routers import Routing
from recsys_moe.routers.base import RouterShape
from recsys_moe.routers.comet import CometRouter, leaf_probs, tree_weights
from recsys_moe.routers.smooth_step import smooth_step

SPLITS = torch.tensor([[[0.25, -0.1, 0.1], [0.0, -0.5, 0.25]]], dtype=torch.float64)
LEAVES = torch.tensor([[[0.2, -0.1, 0, 0.3], [0.1, 0, -0.2, 0.05]]], dtype=torch.float64)
# Tree 0: S = .84375, .352, .648. Leaf 0 is left, left: .84375 * .352 = .297; leaf 3 right, right:
# .15625 * .352 = .055. Tree 1: S(-.5) = 0, so leaf 0 is never reached.
WEIGHTS = [0.185033, 0.507380, 0.227825, 0.079762]


def router(num_experts: int = 4, inputs: int = 1, **settings: object) -> CometRouter:
    torch.manual_seed(0)
    config = CometRouter.Config(**settings)
    return CometRouter(config, RouterShape(inputs, num_experts)).double()


def golden(**settings: object) -> tuple[CometRouter, Routing]:
    """A router of one input 0, so that the pre-activations are the biases."""
    made = router(**settings)
    with torch.no_grad():
        made.split_gate.bias.copy_(SPLITS.flatten())
        made.leaf_gate.bias.copy_(LEAVES.flatten())
    return made, made(torch.zeros(1, 1, dtype=torch.float64))


def naive_leaf(splits_N: Tensor, gamma: float, num_experts: int, node: int) -> float:
    """Probability of heap node `node`: the product along its path from the root."""
    probability = 1.0
    while node > 0:
        parent, is_left = (node - 1) // 2, node % 2 == 1
        left = smooth_step(splits_N[parent], gamma).item()
        probability *= left if is_left else 1 - left
        node = parent
    return probability


def test_golden_router_with_its_entropy() -> None:
    made, routing = golden()
    assert routing.weights_BE[0].tolist() == pytest.approx(WEIGHTS, abs=1e-6)
    assert routing.losses["entropy"].item() == pytest.approx(1.991914, abs=1e-6)
    assert set(made.loss_weights) == set(routing.losses)
    assert routing.probs_BE is not None
    assert routing.probs_BE.sum().item() == pytest.approx(1)


def test_the_configured_weights_are_those_of_the_losses() -> None:
    settings = {"entropy": 0.7, "permutation": True, "permutation_entropy": 0.3}
    assert router(**settings).loss_weights == {"entropy": 0.7, "permutation": 0.3}


def test_a_hardly_reached_leaf_keeps_the_floor_of_its_logarithm() -> None:
    """log(1e-10 + 1e-8) against log(1 + 1e-8): weights in the ratio 1.01e-8, not 1e-10."""
    reach_BKE = torch.tensor([[[1e-10, 1.0]]], dtype=torch.float64)
    weights_BE = tree_weights(torch.zeros_like(reach_BKE), reach_BKE)
    assert (weights_BE[0, 0] / weights_BE[0, 1]).item() == pytest.approx(1.01e-8, rel=1e-6)


@pytest.mark.parametrize(
    ("num_experts", "leaves"),
    [
        (2, [1, 2]),
        (3, [3, 4, 2]),
        (4, [3, 4, 5, 6]),
        (5, [7, 8, 4, 5, 6]),
        (9, [15, 16, 8, 9, 10, 11, 12, 13, 14]),
    ],
)
def test_leaves_come_left_to_right_for_any_number_of_experts(
    num_experts: int, leaves: list[int]
) -> None:
    generator = torch.Generator().manual_seed(num_experts)
    splits_BKN = torch.randn(3, 2, num_experts - 1, generator=generator, dtype=torch.float64) / 4
    found_BKE = leaf_probs(splits_BKN, 1.0)
    for b in range(3):
        for k in range(2):
            expected = [naive_leaf(splits_BKN[b, k], 1.0, num_experts, leaf) for leaf in leaves]
            assert found_BKE[b, k].tolist() == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(found_BKE.sum(-1), torch.ones(3, 2, dtype=torch.float64))


def test_saturated_trees_select_one_leaf_each() -> None:
    made = router()
    with torch.no_grad():
        made.split_gate.bias.copy_(torch.tensor([9.0, 0, -9.0, 9.0, -9.0, 0]))
        made.split_gate.bias[1] = -9.0
    # tree 0: left, right -> leaf 1; tree 1: left, right -> leaf 1
    routing = made(torch.zeros(1, 1, dtype=torch.float64))
    assert routing.selected_BE.tolist() == [[False, True, False, False]]
    assert routing.weights_BE[0].tolist() == pytest.approx([0, 1, 0, 0])
    with torch.no_grad():
        made.split_gate.bias[0] = -9.0  # tree 0: right, right -> leaf 3
    routing = made(torch.zeros(1, 1, dtype=torch.float64))
    assert routing.selected_BE.tolist() == [[False, True, False, True]]
    a = torch.stack([made.leaf_gate.bias[4 + 1], made.leaf_gate.bias[3]]).softmax(0)
    assert routing.weights_BE[0, [1, 3]].tolist() == pytest.approx(a.tolist())


def test_an_unreached_leaf_has_weight_0_and_no_gradient() -> None:
    made = router()
    with torch.no_grad():
        made.split_gate.bias[[0, 3]] = 9.0  # both trees go left: leaves 2 and 3 are not reached
    routing = made(torch.zeros(1, 1, dtype=torch.float64))
    assert (routing.weights_BE[0, 2:] == 0).all() and not routing.selected_BE[0, 2:].any()
    routing.weights_BE[0, 0].backward()
    gradient = made.leaf_gate.bias.grad
    assert gradient is not None
    assert (gradient.view(2, 4)[:, 2:] == 0).all() and (gradient.view(2, 4)[:, :2] != 0).all()


def test_before_training_every_expert_is_selected() -> None:
    made = router(9, 8)
    assert made(torch.randn(5, 8, dtype=torch.float64) / 20).selected_BE.all()
    assert made.max_selected == 9


@pytest.mark.parametrize("gamma", [1.0, 5.0])
def test_gates_start_uniform_with_the_bounds_of_the_authors(gamma: float) -> None:
    made = router(9, 64, gamma=gamma)
    for gate, bound in ((made.split_gate, gamma / 100), (made.leaf_gate, 0.05)):
        assert 0.95 * bound < gate.weight.abs().max() <= bound
        assert gate.bias.abs().max() <= bound


def test_the_permutation_moves_weights_probabilities_and_selection_together() -> None:
    made, straight = golden()
    permuting, _ = golden(permutation=True)
    permuting.eval()
    assert permuting.permutation is not None
    # expert 0 goes to slot 2, 1 to 0, 2 to 3, 3 to 1
    permuting.permutation.hard_EE.copy_(torch.eye(4)[[2, 0, 3, 1]])
    routing = permuting(torch.zeros(1, 1, dtype=torch.float64))
    expected = [0.507380, 0.079762, 0.185033, 0.227825]
    assert routing.weights_BE[0].tolist() == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(routing.probs_BE, routing.weights_BE)
    assert torch.equal(routing.selected_BE, straight.selected_BE[:, [1, 3, 0, 2]])
    assert set(permuting.loss_weights) == {"entropy", "permutation"} == set(routing.losses)
