"""torch-rechub's MMoE and PLE in its own trainer: its optimizer, losses and early stopping.

Axes: N rows, U users, I items, T tasks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_rechub.basic.features import SparseFeature
from torch_rechub.models.multi_task import MMOE, PLE
from torch_rechub.trainers import MTLTrainer
from torch_rechub.utils.data import DataGenerator

from research.accuracy.rows import Fitted, Part, Scores, TrainingRows

Loss = Callable[[Tensor, Tensor], Tensor]
TASKS = ["classification", "regression"]
BATCH = 1024
"""Of its examples."""


def mmoe(rows: TrainingRows, settings: dict[str, Any], seed: int) -> Fitted:
    torch.manual_seed(seed)
    sizes = settings["sizes"]
    tasks = _tasks(rows)
    model = MMOE(_features(rows, sizes), tasks, sizes["experts"], *_widths(sizes, tasks))
    return _trained(model, rows, settings)


def ple(rows: TrainingRows, settings: dict[str, Any], seed: int) -> Fitted:
    torch.manual_seed(seed)
    sizes = settings["sizes"]
    numbers = (1, sizes["specific"], sizes["shared"])
    tasks = _tasks(rows)
    model = PLE(_features(rows, sizes), tasks, *numbers, *_widths(sizes, tasks))
    return _trained(model, rows, settings)


def _features(rows: TrainingRows, sizes: dict[str, Any]) -> list[SparseFeature]:
    counts = {"user": rows.users, "item": rows.items}
    return [SparseFeature(name, size, sizes["embedding"]) for name, size in counts.items()]


def _tasks(rows: TrainingRows) -> list[str]:
    """The first alone where the log has no ratings."""
    return TASKS if len(rows.train.rated().user) else TASKS[:1]


def _widths(sizes: dict[str, Any], tasks: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    expert = {"dims": [sizes["expert"]], "dropout": sizes.get("dropout", 0.0)}
    return expert, [{"dims": [sizes["tower"]]} for _ in tasks]


def _trained(model: torch.nn.Module, rows: TrainingRows, settings: dict[str, Any]) -> Fitted:
    tasks = _tasks(rows)
    mean = float(np.nanmean(rows.train.rating)) if len(tasks) > 1 else 0.0
    masked = settings["missing"] == "masked"
    x, y = _inputs(rows.train), _labels(rows.train, np.nan if masked else mean, len(tasks))
    held_out = _inputs(rows.val), _labels(rows.val, mean, len(tasks))
    loaders = DataGenerator(x, y).generate_dataloader(*held_out, *held_out, batch_size=BATCH)
    with tempfile.TemporaryDirectory() as folder:
        trainer = MTLTrainer(
            model,
            tasks,
            n_epoch=settings["epochs"],
            earlystop_patience=settings["patience"],
            model_path=folder,
        )
        if masked:
            trainer.loss_fns[1] = _masked_mse
        if "weights" in settings:
            weighed = zip(settings["weights"], trainer.loss_fns, strict=True)
            trainer.loss_fns = [_times(weight, loss) for weight, loss in weighed]
        trainer.fit(*loaders[:2])
    model.load_state_dict(trainer.early_stopper.best_weights)
    return lambda: _scores(model, rows)


def _inputs(part: Part) -> dict[str, np.ndarray]:
    return {"user": part.user, "item": part.item}


def _labels(part: Part, missing: float, tasks: int) -> np.ndarray:
    """float32 (N, T); the library knows no missing label."""
    rating_N = np.where(np.isnan(part.rating), missing, part.rating)
    return np.stack([part.watch, rating_N], 1).astype(np.float32)[:, :tasks]


def _times(weight: float, loss: Loss) -> Loss:
    """Not the library's either: it takes the plain mean of the tasks' losses."""
    return lambda prediction_N, label_N: weight * loss(prediction_N, label_N)


def _masked_mse(prediction_N: Tensor, label_N: Tensor) -> Tensor:
    """Not the library's: its mean squared error, over rows with a rating."""
    known_N = ~label_N.isnan()
    return (prediction_N[known_N] - label_N[known_N]).square().mean()


@torch.no_grad()
def _scores(model: torch.nn.Module, rows: TrainingRows) -> Scores:
    """Logits and ratings of every pair. As a regression its last layer leaves logits as they are:
    probabilities of float32 would tie near 1."""
    model.eval()
    model.predict_layers[0].task_type = "regression"
    item_I = torch.arange(rows.items)
    # Laid out at once: rows kept one by one lie between the large blocks that a pass gives back,
    # and the heap grew by 3 MB a user of MovieLens-1M, past 22 GB.
    both_UIT = torch.empty(rows.users, rows.items, len(_tasks(rows)))
    for user in range(rows.users):
        both_UIT[user] = model({"user": item_I.new_full((rows.items,), user), "item": item_I})
    return Scores(*(part.numpy() for part in both_UIT.unbind(-1)))
