"""Rating errors after the cut of MovieLens-1M, ours less myFM's, with an error over users.

    python -m research.time_peers.paired RUN --data DATA/ml-1m-time --fm ROWS.npz

ROWS.npz: of `research.time_peers.fm --save`. Axes: B, N rows, U users.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recsys_moe.artifact.evaluate import data_of, open_split
from recsys_moe.artifact.evaluation import Evaluation, add_rows
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.data.batches import EvalBatches
from recsys_moe.kinds import rating_task
from recsys_moe.model.request import Request

ITEMS = 1 << 20
"""More than there are."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fm", type=Path, required=True)
    options = parser.parse_args(argv)
    user_N, item_N, ours_N = errors(options.run, options.data)
    peer = np.load(options.fm)
    # Both number users and items by their ids, in order; the split may cut a second in two.
    key_N, peer_N = user_N * ITEMS + item_N, peer["user"] * ITEMS + peer["item"]
    _, own_N, other_N = np.intersect1d(key_N, peer_N, assume_unique=True, return_indices=True)
    user_N, ours_N, theirs_N = user_N[own_N], ours_N[own_N], peer["error"][other_N]
    less_N = ours_N - theirs_N
    mean = float(less_N.mean())
    sums_U = np.bincount(user_N, less_N - mean)  # rows of a user are not independent
    error = float(np.sqrt((sums_U**2).sum()) / len(less_N))
    print(f"ours {ours_N.mean():.4f}, myFM {theirs_N.mean():.4f}, {len(less_N)} ratings")
    print(f"ours less myFM {mean:.4f} +- {error:.4f} (one standard error over users)")


class Errors:
    """Squared errors of the rating task, batch by batch."""

    def __init__(self, task: int) -> None:
        self.task, self.parts = task, list[tuple[Tensor, Tensor, Tensor]]()

    def report(self) -> dict[str, object]:
        return {}

    def update(self, request: Request, scored: tuple[Tensor, Tensor]) -> None:
        logits_B, labels_B = (one[:, self.task] for one in scored)
        known_B = ~labels_B.isnan()
        error_B = (logits_B - labels_B).square()
        self.parts.append((request.user[known_B], request.item[known_B], error_B[known_B]))


def errors(run: Path, data: Path) -> list[np.ndarray]:
    """User and item, numbered in the order of their ids, and squared error of test ratings."""
    artifact = load_artifact(run)
    folder, schema = data_of(run, artifact, data)
    task = rating_task(schema.tasks)
    assert task is not None
    kept, rows = Errors(task), open_split(artifact, folder, schema, "test")
    batches = EvalBatches(rows, artifact.config.eval_rows, by_user=True)
    with torch.inference_mode():
        evaluation = Evaluation(schema, artifact.config)
        add_rows(evaluation, artifact.model, batches, artifact.config, apart=[kept])
    user_N, item_N, error_N = (torch.cat(one).numpy() for one in zip(*kept.parts, strict=True))
    users, items = artifact.users["user"].to_numpy(), artifact.items["item"].to_numpy()
    return [users.argsort().argsort()[user_N], items.argsort().argsort()[item_N], error_N]


if __name__ == "__main__":
    main()
