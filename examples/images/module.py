"""The Lightning module of the image experiments: losses and optimizer.

Axes: B batch, T tasks, C classes.
"""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor
from torch.nn import functional

from examples.common.runs import chosen_router
from examples.images.model import ImageMoE
from examples.images.settings import Settings

EVAL_ROWS = 1000
"""Rows of a batch that is evaluated."""
EPSILON = 1e-7
"""Of Adam: Keras' default."""


class ImageModule(L.LightningModule):
    """Loss: the mean of the tasks' cross-entropies, in training plus penalties of routing."""

    def __init__(self, settings: Settings, shape: tuple[int, int]) -> None:
        super().__init__()
        self.settings = settings
        chosen = chosen_router(settings.router, settings.k, settings.router_settings)
        self.model = ImageMoE(shape, settings.tasks, settings.experts, chosen)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            self.model.parameters(), lr=self.settings.lr, eps=EPSILON, fused=True
        )

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        image, labels_BT = batch
        layer = self.model.layer
        # Draws follow from seed and step, so a resumed run has the same bits.
        layer.reseed(self.settings.seed * 10**9 + self.global_step)
        layer.set_epoch(self.current_epoch + index / self.trainer.num_training_batches)
        logits_BTC, routings = self.model(image)
        penalty = layer.auxiliary_loss(routings, trimmed_lasso=self.settings.trimmed_lasso)
        layer.on_step_end()
        return row_losses(logits_BTC, labels_BT).mean() + penalty

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self._evaluate("val", *batch)

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self._evaluate("test", *batch)

    def _evaluate(self, split: str, image: Tensor, labels_BT: Tensor) -> None:
        """Log means over the rows of a split: loss, accuracy per task, experts computed per row."""
        logits_BTC, routings = self.model(image)
        losses_BT, right_BT = row_losses(logits_BTC, labels_BT), logits_BTC.argmax(-1) == labels_BT
        union_BE = torch.stack([routing.selected_BE for routing in routings]).any(0)
        found = {"loss": losses_BT.mean(), "experts": union_BE.float().sum(1).mean()}
        for task in range(self.settings.tasks):
            found[f"loss_{task + 1}"] = losses_BT[:, task].mean()
            found[f"accuracy_{task + 1}"] = right_BT[:, task].float().mean()
        named = {f"{split}/{name}": value for name, value in found.items()}
        self.log_dict(named, on_step=False, on_epoch=True, batch_size=len(image))


def row_losses(logits_BTC: Tensor, labels_BT: Tensor) -> Tensor:
    """Cross-entropy of each row and task, (B, T)."""
    return functional.cross_entropy(logits_BTC.transpose(1, 2), labels_BT, reduction="none")
