"""Selection of the largest entries of a row, and weights on a selection; for all routers.

Axes: B batch, E experts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from recsys_moe.routers.base import Routing

FEW = 4
"""Entries up to which they are found one by one instead of sorting the row..."""
SMALL = 1024
"""... unless the batch has no more entries than this: then sorting takes fewer operations."""


def largest_k(values_BE: Tensor, k: int) -> Tensor:
    """bool (B, E): True at the k largest entries per row; among equals the lower index wins.

    By index and not by value: an entry that equals the k-th one but lost the tie is False, and
    an entry whose value is 0 may be True.
    """
    mask_BE = torch.zeros_like(values_BE, dtype=torch.bool)
    eager_cpu = values_BE.device.type == "cpu" and not torch.compiler.is_exporting()
    by_maxima = k <= FEW and eager_cpu and values_BE.numel() > SMALL
    if by_maxima and bool((values_BE > -torch.inf).all()):
        return _k_maxima(values_BE, k, mask_BE)
    return mask_BE.scatter_(-1, descending_order(values_BE)[:, :k], True)


def _k_maxima(values_BE: Tensor, k: int, mask_BE: Tensor) -> Tensor:
    """Mark the maximum k times. Of equal ones `max` gives the first: `largest_k` without a sort.

    On a CPU 3 (of 16 entries) to 17 (of 256) times as fast. Needs values above -inf.
    """
    rest_BE = values_BE.detach().clone()
    for _ in range(k):
        first_B1 = rest_BE.max(-1, keepdim=True).indices
        rest_BE.scatter_(-1, first_B1, -torch.inf)
        mask_BE.scatter_(-1, first_B1, True)
    return mask_BE


def smallest_k(values_BE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest entries per row, smallest first, and their indices; (B, K), without gradient.

    Among equals the lower index comes first, which `topk` leaves to the library; NaN is smaller
    than all. Needs values below infinity. One by one they are found in 40% of the time of `topk`
    (2,048 rows of 16 entries, k = 2, on a CPU).
    """
    if k > FEW or values_BE.device.type != "cpu":
        nan_first_BE = values_BE.detach().nan_to_num(nan=-torch.inf)
        index_BK = nan_first_BE.sort(dim=-1, stable=True).indices[:, :k]
        return values_BE.detach().gather(-1, index_BK), index_BK
    rest_BE, found = values_BE.detach().clone(), []
    for _ in range(k):
        value_B1, index_B1 = rest_BE.min(-1, keepdim=True)
        rest_BE.scatter_(-1, index_B1, torch.inf)
        found.append((value_B1, index_B1))
    value_BK, index_BK = (torch.cat(parts, -1) for parts in zip(*found, strict=True))
    return value_BK, index_BK


def descending_order(values_BE: Tensor) -> Tensor:
    """Indices (B, E) of each row from its largest entry to its smallest; lower ones first in ties.

    An exported graph counts, E * E comparisons a row, little compared with its dense experts:
    ONNX has no stable sort.
    """
    if not torch.compiler.is_exporting():
        return values_BE.sort(dim=-1, descending=True, stable=True).indices
    positions_E = torch.arange(values_BE.shape[-1], device=values_BE.device)
    mine_BE1, other_B1E = values_BE[:, :, None], values_BE[:, None, :]
    is_lower_EE = positions_E < positions_E[:, None]
    is_before_BEE = (other_B1E > mine_BE1) | ((other_B1E == mine_BE1) & is_lower_EE)
    rank_BE = is_before_BEE.long().sum(-1)
    return torch.zeros_like(rank_BE).scatter(-1, rank_BE, positions_E.expand_as(rank_BE))


def keep_selected(probs_BE: Tensor, selected_BE: Tensor) -> Tensor:
    """The selected probabilities as they are, exactly 0 elsewhere: rows sum to less than 1."""
    return torch.where(selected_BE, probs_BE, torch.zeros_like(probs_BE))


def kept_softmax(logits_BE: Tensor, selected_BE: Tensor) -> Routing:
    """w = softmax(logits) on the selected experts, not renormalised."""
    probs_BE = logits_BE.softmax(-1)
    return Routing(keep_selected(probs_BE, selected_BE), selected_BE, probs_BE, logits_BE)


def softmax_over(logits_BE: Tensor, selected_BE: Tensor) -> Tensor:
    """Softmax over the selected entries of each row, exactly 0 elsewhere. Each row needs one."""
    return logits_BE.masked_fill(~selected_BE, -torch.inf).softmax(-1)


def picks(rows: int, num_experts: int, k: float) -> int:
    """Examples per expert, S * k / E rounded up, within 1..S.

    The paper of Expert Choice does not say how to round; its code rounds up to a multiple of 4 or
    at least 4.
    """
    share = rows * k / num_experts
    return min(rows, max(1, math.ceil(share - 1e-9)))  # 45 * 2.2 / 9 is a little above 11


def unit_rows(vectors: Tensor) -> Tensor:
    """Rows divided by their length. A row shorter than 1e-12 becomes 0 and has no gradient."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    # A quotient by 1e-12 would keep the value finite and make a gradient of 1e12.
    return vectors / length.masked_fill(length < 1e-12, torch.inf)
