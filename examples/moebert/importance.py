"""How much each unit of the feed-forward blocks matters to a trained encoder (MoEBERT, Zuo et al.
2022, https://arxiv.org/abs/2204.07675).

Unit j of a block has the score  sum over texts of |<w1_j, dl/dw1_j> + <w2_j, dl/dw2_j>|,  w1_j row
j of the first matrix, w2_j column j of the second, l the loss of one text. An inner product
<w, dl/dw> is the derivative of the loss by a factor before w, at 1: so gradients are asked for two
factors per unit, and the gradients of the matrices are never kept.

Axes: B batch, F units, T labels of a text.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from examples.moebert.encoder import Encoder, Text
from examples.moebert.losses import task_loss

AT_ONCE = 16
"""Texts whose gradients are computed together: a layer's matrices have one each for a moment."""


def importance(encoder: Encoder, batches: Iterable[tuple[Text, Tensor]]) -> list[Tensor]:
    """Scores (F,) of each layer, >= 0; larger is more important. The encoder is evaluated."""
    encoder.eval()
    factors = [
        torch.ones(2, encoder.sizes.intermediate_size, device=next(encoder.parameters()).device)
        for _ in encoder.layers
    ]
    scores = [torch.zeros_like(pair[0]) for pair in factors]
    each = vmap(grad(_Loss(encoder)), in_dims=(None, 0, 0), chunk_size=AT_ONCE)
    for text, labels_BT in batches:
        with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the fused ones (torch 2.13)
            slopes_of_layers = each(factors, tuple(text), labels_BT)
        for score, slopes in zip(scores, slopes_of_layers, strict=True):
            score += slopes.sum(1).abs().sum(0)  # (B, 2, F)
    return [score.detach() for score in scores]


class _Loss:
    """Of one text, as a function of the factors before the units' weights."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.fixed = {name: p.detach() for name, p in encoder.named_parameters()}

    def __call__(self, factors: list[Tensor], text: tuple[Tensor, ...], label_T: Tensor) -> Tensor:
        weights = dict(self.fixed)
        for index, (before, after) in enumerate(factors):
            layer = f"bert.encoder.layer.{index}"
            into, out = f"{layer}.intermediate.dense.weight", f"{layer}.output.dense.weight"
            weights[into] = weights[into] * before[:, None]
            weights[out] = weights[out] * after
        one = Text(*(part[None] for part in text))
        seen = functional_call(self.encoder, weights, (one,))
        return task_loss(seen.logits, label_T[None])
