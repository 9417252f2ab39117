"""Logits of a few pairs in less time than the model's forward pass takes: 0.7 of it for one pair.

Scoring one pair costs what its tensor operations cost to call, more than their arithmetic. The
forward pass sorts the chosen pairs by expert, so that each expert multiplies its own rows only. For
a few rows that plan takes longer than what it saves: here each visited expert multiplies all rows.
Axes: B batch, T tasks, E experts, V visited experts, D input width, H expert width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys_moe.model.network import MultiTaskMoE

FEW_PRODUCTS = 256
"""Rows times visited experts. Below, this takes 0.6 to 1.0 of the forward pass's time: up to 16
rows with 16 experts (k=2, two tasks), up to 8 with 64 or 256, where each row visits its own."""


def is_few(model: MultiTaskMoE, rows: int) -> bool:
    """Is `logits_of_few` worth it? By the most experts that so many rows can visit."""
    num_experts = len(model.moe.experts.bias_EH)
    visited = min(num_experts, rows * sum(router.max_selected for router in model.routers))
    return 0 < rows * visited <= FEW_PRODUCTS


@torch.inference_mode()
def logits_of_few(model: MultiTaskMoE, user_B: Tensor, item_B: Tensor) -> Tensor:
    """Logits (B, T), equal to those of `model(user_B, item_B)` within rounding.

    Routers run as they are, in the same order and on the same rows, so this holds too where rows
    influence each other or a router draws.
    """
    tables = model.user_embedding.weight, model.item_embedding.weight
    x_BD = torch.cat([tables[0].index_select(0, user_B), tables[1].index_select(0, item_B)], -1)
    weights_BTE = torch.stack([r(x_BD, user_B).weights_BE for r in model.routers], 1)
    visited_V = weights_BTE.flatten(0, 1).any(0).nonzero()[:, 0]
    experts = model.moe.experts
    hidden_VBH = x_BD.new_empty(len(visited_V), len(x_BD), experts.bias_EH.shape[-1])
    for expert, hidden_BH in zip(visited_V.tolist(), hidden_VBH.unbind(), strict=True):
        torch.addmm(experts.bias_EH[expert], x_BD, experts.kernel_EDH[expert], out=hidden_BH)
    mixed_BTH = weights_BTE.index_select(-1, visited_V) @ hidden_VBH.relu_().transpose(0, 1)
    pairs = zip(model.towers, mixed_BTH.unbind(1), strict=True)
    return torch.cat([tower(mixed_BH) for tower, mixed_BH in pairs], -1).float()
