"""One pass of a model over a split or a sample of it: outputs, metrics, sums over routings.

Axes: N rows, T tasks, E experts, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recsys_moe.artifact.evaluation import Evaluation
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.artifact.routing_history import take_rows, top_expert
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import Columns
from recsys_moe.routers import Routing


@dataclass(frozen=True)
class Sample:
    """Rows of a split and the model's output for them."""

    columns: Columns
    split: str
    split_rows: int
    """Rows of the whole split."""
    logits_NT: Tensor
    top_NT: Tensor
    """int64: the expert with the largest weight, the most probable one of equal weights; -1 for
    a row without an expert."""
    entropy_NT: Tensor
    """Of the routing distribution in nats; NaN for a row without an expert."""
    visits_TE: Tensor
    """Rows that selected an expert."""
    weight_TE: Tensor
    """Sum over rows of the routing weights."""
    either_E: Tensor
    """Rows that selected an expert for any task."""
    mass_TE: Tensor
    """[t, j]: sum over rows of the j + 1 largest entries of the routing distribution."""
    dense_T: Tensor
    """Not 0: the distribution is the router's dense probabilities; else its weights, normalised."""
    evaluation: dict[str, Any]
    """Metrics on these rows, as `evaluate --json` has them; in a Run with `baselines`."""

    @property
    def rows(self) -> int:
        return len(self.columns)

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole split."""
        return self.rows == self.split_rows


def choose_rows(total: int, most: int, group: int, seed: int) -> Tensor:
    """Ascending places of all rows, or of random groups of `group` consecutive ones.

    At most `most` rows, or one group. Rows of a group are routed together and so stay together.
    """
    groups, wanted = -(-total // group), max(1, most // group)
    if total <= most or wanted >= groups:
        return torch.arange(total)
    order_G = torch.randperm(groups, generator=torch.Generator().manual_seed(seed))
    first_G = order_G[:wanted].sort().values * group
    row_N = (first_G[:, None] + torch.arange(group)).flatten()
    return row_N[row_N < total]


ROUTED = ("top_NT", "entropy_NT", "visits_TE", "weight_TE", "either_E", "mass_TE", "dense_T")


def routed(routings: Sequence[Routing]) -> dict[str, Tensor]:
    """Statistics of the routings of a batch, one per task, by the field of Sample.

    Per row, or summed over the rows in float64; empty for a model without routers.
    """
    if not routings:
        return {field: torch.zeros(0, 0) for field in ROUTED}
    shares = [distribution(routing) for routing in routings]
    largest = [share_BE.sort(-1, descending=True).values.double() for share_BE in shares]
    selected_TBE = torch.stack([routing.selected_BE for routing in routings])
    return {
        "top_NT": torch.stack([top_expert(routing) for routing in routings], 1),
        "entropy_NT": torch.stack([entropy(share_BE) for share_BE in shares], 1),
        "visits_TE": selected_TBE.sum(1).double(),
        "weight_TE": torch.stack([routing.weights_BE.double().sum(0) for routing in routings]),
        "either_E": selected_TBE.any(0).sum(0).double(),
        "mass_TE": torch.stack([largest_BE.cumsum(-1).sum(0) for largest_BE in largest]),
        "dense_T": torch.tensor([routing.probs_BE is not None for routing in routings]),
    }


def joined(batches: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Rows of all batches one after the other, sums added up."""
    return {
        name: torch.cat([batch[name] for batch in batches])
        if name.endswith("_NT")
        else torch.as_tensor(sum(batch[name] for batch in batches))
        for name in batches[0]
    }


def distribution(routing: Routing) -> Tensor:
    """The router's dense probabilities, or its weights divided by their sum; 0 without any. (B, E)

    Rows without an expert are 0.
    """
    weights_BE = routing.weights_BE
    total_B1 = weights_BE.sum(-1, keepdim=True)
    shares_BE = routing.probs_BE
    if shares_BE is None:
        shares_BE = weights_BE / total_B1.clamp(min=torch.finfo(weights_BE.dtype).tiny)
    return shares_BE.float() * routing.selected_BE.any(-1, keepdim=True)


def entropy(share_BE: Tensor) -> Tensor:
    """-sum p ln p per row in nats, in 0..ln E; NaN for a row of zeros. (B, E) -> (B,)"""
    found_B = -torch.xlogy(share_BE, share_BE).sum(-1)
    return torch.where(share_BE.sum(-1) > 0, found_B.clamp(min=0), torch.nan)


@torch.inference_mode()
def take_sample(
    artifact: Artifact,
    rows: Rows,
    split: str,
    *,
    most: int,
    seed: int,
    progress: Callable[[int], None] = lambda rows: None,
) -> Sample:
    """Evaluate at most `most` rows of a split, as `evaluate` does.

    For the whole split the metrics are those of `evaluate`.
    """
    model, config = artifact.model, artifact.config
    row_N = choose_rows(len(rows), most, config.model.eval_rows, seed)
    columns = take_rows(rows, row_N)
    evaluation = Evaluation(artifact.schema, config, artifact.calibration)
    batches = []
    model.eval()
    model.reseed(config.trainer.seed)
    for batch in EvalBatches(columns, config.eval_rows):
        output = model(batch.request)
        evaluation.update(output, batch.labels)
        batches.append({"logits_NT": output.logits_BT, **routed(output.routings)})
        progress(len(batch.labels))
    return Sample(
        columns=columns,
        split=split,
        split_rows=len(rows),
        evaluation=evaluation.result(split),
        **joined(batches),
    )
