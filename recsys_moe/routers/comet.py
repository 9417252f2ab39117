"""COMET: k soft trees over the experts, and optionally a learned permutation of the experts.

Ibrahim et al. 2023, https://arxiv.org/abs/2306.02824 (COMET, and with the permutation COMET+).
Axes: B batch, E experts (leaves), K trees, N = E - 1 splits of a tree, D input width.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Router, RouterShape, Routing
from recsys_moe.routers.permutation import LearnedPermutation
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import softmax_over
from recsys_moe.routers.smooth_step import SmoothConfig, entropy, smooth_step, uniform_linear


class CometRouter(Router):
    """One softmax over the leaves of all trees of a_ji + log p_ji; w_i sums over the trees j.

    p_ji is the probability that tree j routes the example to leaf i, a product of smooth-steps;
    a_ji is linear in x. Dense at first: every leaf is reached until the splits saturate at 0 or 1;
    then at most k experts are selected, which the layer notices by itself.
    """

    class Config(SmoothConfig):
        name: str = "comet"
        k: int = 2
        """Trees, and so experts per example at the end of training; 1..num_experts."""
        entropy: float = Field(default=0.1, ge=0, allow_inf_nan=False)
        """Weight of the trees' entropy, which drives each to one leaf; searched 0.05..10 on
        MovieLens and 1..100 on Books."""
        permutation: bool = False
        """Learn which expert sits at which leaf (COMET+)."""
        permutation_epochs: float = Field(default=5.0, gt=0, allow_inf_nan=False)
        """Epochs until the permutation is frozen; > 0, the authors searched 1..10."""
        permutation_entropy: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
        """Weight of the permutation's entropy while it is learned."""

    summary = "k trees with an expert at each leaf; becomes sparse as training saturates them"
    sparsity = "dense to sparse"

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        k, num_experts = config.k, shape.num_experts
        self.split_gate = uniform_linear(shape.input_dim, k * (num_experts - 1), config.gamma / 100)
        self.leaf_gate = uniform_linear(shape.input_dim, k * num_experts, 0.05)
        self.permutation = (
            LearnedPermutation(num_experts, config.permutation_epochs)
            if config.permutation
            else None
        )

    @property
    def loss_weights(self) -> dict[str, float]:
        weights = {"entropy": self.config.entropy}
        if self.permutation is not None:
            weights["permutation"] = self.config.permutation_entropy
        return weights

    def set_epoch(self, epochs: float) -> None:
        if self.permutation is not None:
            self.permutation.set_epoch(epochs)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        k, num_experts = self.config.k, self.shape.num_experts
        splits_BKN = gate_logits(self.split_gate, x_BD).unflatten(-1, (k, num_experts - 1))
        leaves_BKE = gate_logits(self.leaf_gate, x_BD).unflatten(-1, (k, num_experts))
        reach_BKE = leaf_probs(splits_BKN, self.config.gamma)
        weights_BE = tree_weights(leaves_BKE, reach_BKE)
        routing = Routing(
            weights_BE,
            (reach_BKE != 0).any(1),
            probs_BE=weights_BE,
            losses={"entropy": entropy(reach_BKE).sum((1, 2)).mean()},
        )
        return routing if self.permutation is None else self.permutation(routing)


def tree_weights(leaves_BKE: Tensor, reach_BKE: Tensor) -> Tensor:
    """Joint softmax over trees and leaves that are reached, summed over the trees. (B, E).

    Exactly 0 for an expert that no tree reaches; rows sum to 1.
    """
    scores_BKE = leaves_BKE + torch.log(reach_BKE + 1e-8)
    joint = softmax_over(scores_BKE.flatten(1), (reach_BKE != 0).flatten(1))
    return joint.unflatten(1, leaves_BKE.shape[1:]).sum(1)


def leaf_probs(splits_BKN: Tensor, gamma: float) -> Tensor:
    """Probability of each leaf, left to right: (B, K, N) -> (B, K, E).

    Splits are in heap order: the children of t are 2t + 1 (left, with probability S) and 2t + 2.
    Where E is not a power of 2 the first, leftmost leaves are one level deeper than the others.
    """
    left_BKN, right_BKN = smooth_step(splits_BKN, gamma), smooth_step(-splits_BKN, gamma)
    num_splits = splits_BKN.shape[-1]
    level, start = torch.ones_like(splits_BKN[..., :1]), 0
    while start < num_splits:
        width = min(level.shape[-1], num_splits - start)
        nodes = slice(start, start + width)
        parents, leaves = level[..., :width], level[..., width:]
        both = [parents * left_BKN[..., nodes], parents * right_BKN[..., nodes]]
        level = torch.cat([torch.stack(both, dim=-1).flatten(-2), leaves], dim=-1)
        start += width
    return level
