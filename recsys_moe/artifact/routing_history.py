"""routing.safetensors: the top expert of a sample of validation rows after each epoch.

What `recsys-moe report` shows as the routing's consistency between epochs. Axes: R recorded
epochs, T tasks, N sampled rows, B rows of a batch, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import Columns, joined
from recsys_moe.errors import DataError
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.request import Request
from recsys_moe.routers import Routing

ROWS = 2048
"""Most rows of the sample, unless a single group that is routed together has more."""
FILE = "routing.safetensors"
NOBODY = -1
"""Stands for the top expert of a row that no expert took."""


@dataclass(frozen=True)
class RoutingHistory:
    """The content of routing.safetensors."""

    epoch_R: Tensor
    """int64: numbers of the epochs, from 1."""
    top_RTN: Tensor
    """int16: the top expert, or NOBODY."""
    row_N: Tensor
    """int64: places of the sampled rows in the validation split."""


def top_expert(routing: Routing) -> Tensor:
    """Per row the selected expert with the largest weight. (B,) int64.

    Of equal weights (MOESART's are all 1/k at inference) the most probable one counts; the lowest
    number where the router has no probabilities, or where these are equal too.
    """
    weights_BE = routing.weights_BE.masked_fill(~routing.selected_BE, -1.0)
    tied_BE = weights_BE == weights_BE.amax(-1, keepdim=True)
    probs_BE = torch.zeros_like(weights_BE) if routing.probs_BE is None else routing.probs_BE
    best_B = probs_BE.masked_fill(~tied_BE, -1.0).argmax(-1)
    return torch.where(routing.selected_BE.any(-1), best_B, NOBODY)


def spread_rows(total: int, most: int, group: int) -> Tensor:
    """Places of evenly spread groups of `group` rows in a row: at most `most` rows, or one group.

    Groups are whole except the last one of the split, as in an evaluation.
    """
    groups = -(-total // group)
    chosen = max(1, min(groups, most // group))
    first_G = torch.arange(chosen) * groups // chosen * group
    row_N = (first_G[:, None] + torch.arange(group)).flatten()
    return row_N[row_N < total]


def take_rows(rows: Rows, row_N: Tensor) -> Columns:
    """The rows at ascending places, without weights, from memory or by row group from disk."""
    parts, start = [], 0
    for chunk in rows.chunks():
        inside_N = (row_N >= start) & (row_N < start + len(chunk))
        parts.append(replace(chunk.part(row_N[inside_N] - start), weight=None, offset=None))
        start += len(chunk)
    return joined(parts)


@torch.inference_mode()
def top_experts(model: Recommender, request: Request) -> Tensor:
    """Top expert per task and row in evaluation mode, (T, N) int16 on the CPU.

    The mode is put back; nothing is drawn from torch's own generator by our routers.
    """
    training = model.training
    model.eval()
    try:
        routings = model.routings(request)
    finally:
        model.train(training)
    return torch.stack([top_expert(routing) for routing in routings]).short().cpu()


def read_routing(path: Path) -> RoutingHistory:
    """Read routing.safetensors. Raises DataError when it is damaged."""
    try:
        content = load_file(path)
        history = RoutingHistory(content["epoch"], content["top"], content["row"])
    except (OSError, KeyError, RuntimeError, ValueError, SafetensorError) as error:
        raise _damaged(path, error) from None
    shape = (len(history.epoch_R), len(history.row_N))
    top = history.top_RTN
    if top.dim() != 3 or (len(top), top.shape[2]) != shape or bool((top < NOBODY).any()):
        raise _damaged(path, f"shapes {tuple(top.shape)} and {shape} do not fit")
    return history


def _damaged(path: Path, error: object) -> DataError:
    reason = str(error).splitlines()[0]
    return DataError(f"{path} is damaged: {reason}; delete it to create the report without it")
