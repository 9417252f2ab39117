"""Losses of a student. Axes: B batch, L positions, D width, C classes, T labels of a text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def task_loss(logits: Sequence[Tensor], labels_BT: Tensor) -> Tensor:
    """Mean cross-entropy over texts and, of answers, both ends. ()."""
    pairs = zip(logits, labels_BT.unbind(1), strict=True)
    return torch.stack([functional.cross_entropy(one, label_B) for one, label_B in pairs]).mean()


def symmetric_kl(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """KL(p || q) + KL(q || p) of the output distributions, mean over texts and ends. ()."""
    terms = []
    for p_BC, q_BC in zip(one, other, strict=True):
        p_BC, q_BC = p_BC.log_softmax(-1), q_BC.log_softmax(-1)
        terms.append(((p_BC.exp() - q_BC.exp()) * (p_BC - q_BC)).sum(-1).mean())
    return torch.stack(terms).mean()


def hidden_distance(one: Sequence[Tensor], other: Sequence[Tensor], mask_BL: Tensor) -> Tensor:
    """Sum over the hidden states of the mean squared difference at tokens of texts. ()."""
    pairs = zip(one, other, strict=True)
    return torch.stack(
        [functional.mse_loss(a_BLD[mask_BL], b_BLD[mask_BL]) for a_BLD, b_BLD in pairs]
    ).sum()
