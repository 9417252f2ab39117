"""How far the rows of a split let a model's figures be known: standard errors over its users.

    python -m research.row_errors RUN [--data DIR] [--split test]

Seeds tell how much training varies on one split. Another split has other rows, and by which rows
it is judged a model's figures vary too: users, whose rows belong together, are drawn anew with
replacement, and the standard error is the standard deviation of the figures of these draws (the
bootstrap of clusters). No benchmark of speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks import common
from recsys_moe.artifact.evaluate import data_of
from recsys_moe.config.build import loss_weights
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.streaming import open_rows, rows_within
from recsys_moe.inference.predictor import Predictor
from recsys_moe.kinds import KINDS
from recsys_moe.model.tasks import row_losses

SEED = 0


class Task(NamedTuple):
    name: str
    kind: str
    weight: float
    """In the loss."""
    logit_N: Tensor
    label_N: Tensor


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=200, clock=False)
    parser.add_argument("run", type=Path, help="a run or model folder")
    parser.add_argument("--data", type=Path, help="by default those that it was trained on")
    parser.add_argument("--split", default="test")
    options = common.parse(parser, argv)
    user_N, tasks = scored(options.run, options.data, options.split)
    found = figures(tasks, np.ones(len(user_N)))
    errors = standard_errors(user_N, tasks, options.rounds)
    rows = [{"figure": name, "value": found[name], "error": errors[name]} for name in found]
    columns = {"figure": "{figure}", "value": "{value:.4f}", "standard error": "{error:.4f}"}
    common.table(columns, rows)
    common.report("row_errors", {"rows": rows, "users": len(np.unique(user_N))})


def scored(run: Path, data: Path | None, split: str) -> tuple[np.ndarray, list[Task]]:
    """The user index of each row of the split, and each task's logits and labels."""
    predictor = Predictor.load(run)
    config = predictor.artifact.config
    folder, schema = data_of(run, predictor.artifact, data)
    most = rows_within(schema, config.data.max_memory_mb)
    batches = list(EvalBatches(open_rows(folder, schema, split, most), config.eval_rows))
    logits_NL = torch.cat([predictor.pair_logits(one.user, one.item) for one in batches])
    labels_NT = torch.cat([one.labels for one in batches])
    columns = zip(schema.tasks, loss_weights(config, schema), predictor.columns, strict=True)
    tasks = [
        Task(task.name, task.kind, weight, logits_NL[:, column], labels_NT[:, t])
        for t, (task, weight, column) in enumerate(columns)
    ]
    return torch.cat([one.user for one in batches]).numpy(), tasks


def standard_errors(user_N: np.ndarray, tasks: Sequence[Task], draws: int) -> dict[str, float]:
    """By figure. `draws`: how often users are drawn."""
    rng = np.random.default_rng(SEED)
    users, place_N = np.unique(user_N, return_inverse=True)
    even_U = np.full(len(users), 1 / len(users))
    times_RU = rng.multinomial(len(users), even_U, size=draws)
    drawn = [figures(tasks, times_U[place_N]) for times_U in times_RU]
    return {name: float(np.std([one[name] for one in drawn], ddof=1)) for name in drawn[0]}


def figures(tasks: Sequence[Task], times_N: np.ndarray) -> dict[str, float]:
    """Each task's mean loss, AUC of binary ones, and the task-weighted loss, of rows that count
    `times_N` times."""
    found: dict[str, float] = {"loss": 0.0}
    for task in tasks:
        losses_N, is_labelled_N = row_losses(KINDS[task.kind], task.logit_N, task.label_N)
        weight_N = times_N * is_labelled_N.numpy()
        mean = float(np.average(losses_N.numpy(), weights=weight_N))
        found["loss"] += task.weight * mean
        found[f"{task.name} loss"] = mean
        if KINDS[task.kind].has_positives:
            found[f"{task.name} AUC"] = auc(task, weight_N)
    return found


def auc(task: Task, weight_N: np.ndarray) -> float:
    counts = weight_N > 0
    label, score, weight = (
        x[counts] for x in (task.label_N.numpy(), task.logit_N.numpy(), weight_N)
    )
    return float(roc_auc_score(label, score, sample_weight=weight))


if __name__ == "__main__":
    main()
