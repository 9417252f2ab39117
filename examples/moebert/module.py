"""The Lightning side of the language experiment. Axes: B batch, L positions, T labels of a text."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torchmetrics.classification import BinaryF1Score, MulticlassMatthewsCorrCoef

from examples.moebert.convert import MixedLayer
from examples.moebert.encoder import Encoder, Seen, Text
from examples.moebert.losses import hidden_distance, symmetric_kl, task_loss
from examples.moebert.settings import Student, Training
from examples.moebert.squad import overlap

EVAL_ROWS = 200
CLIP = 1.0
"""Largest norm of a gradient."""
Batch = tuple[Text, Tensor]


class TextModule(L.LightningModule):
    """A teacher on its task: cross-entropy."""

    def __init__(self, settings: Training, encoder: Encoder) -> None:
        super().__init__()
        self.settings: Any = settings
        self.model = encoder.train()
        classes = encoder.sizes.num_labels
        own = {"mcc": MulticlassMatthewsCorrCoef(classes)} if classes else {}
        self.scores = nn.ModuleDict({**own, **({"f1": BinaryF1Score()} if classes == 2 else {})})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        own = self.settings
        return torch.optim.AdamW(
            self.model.parameters(), lr=own.lr, weight_decay=own.weight_decay, fused=True
        )

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        # Dropout follows from seed and step, so a resumed run has the same bits.
        torch.manual_seed(self.settings.seed * 10**9 + self.global_step)
        return task_loss(self.model(batch[0]).logits, batch[1])

    def validation_step(self, batch: Batch, index: int) -> None:
        self._evaluate("val", *batch)

    def test_step(self, batch: Batch, index: int) -> None:
        self._evaluate("test", *batch)

    def _evaluate(self, split: str, text: Text, labels_BT: Tensor) -> None:
        """Log means over the rows of a split."""
        logits = self.model(text).logits
        guess_BT = torch.stack([one.argmax(-1) for one in logits], 1)
        found: dict[str, Any] = {
            "loss": task_loss(logits, labels_BT),
            "accuracy": (guess_BT == labels_BT).all(1).float().mean(),
        }
        if not self.model.sizes.num_labels:
            found["f1"] = overlap(guess_BT, labels_BT).mean()
        score: Any
        for name, score in self.scores.items():
            score.update(guess_BT[:, 0], labels_BT[:, 0])
            found[name] = score
        named = {f"{split}/{name}": value for name, value in found.items()}
        self.log_dict(named, on_step=False, on_epoch=True, batch_size=len(labels_BT))


class StudentModule(TextModule):
    """A student: cross-entropy, in training plus the distance to the teacher and penalties."""

    def __init__(self, settings: Student, encoder: Encoder, teacher: Encoder) -> None:
        super().__init__(settings, encoder)
        self.aside = [teacher.eval().requires_grad_(False)]  # in a list, so not in checkpoints
        mixtures = [layer.mixture for layer in encoder.layers if isinstance(layer, MixedLayer)]
        self.mixtures = mixtures
        every = {"trimmed_lasso": settings.trimmed_lasso, "switch": settings.balance}
        self.weights = {name: weight for name, weight in every.items() if weight}

    def on_fit_start(self) -> None:
        self.aside[0].to(self.device)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        text, labels_BT = batch
        step = self.settings.seed * 10**9 + self.global_step
        torch.manual_seed(step)
        epochs = self.current_epoch + index / self.trainer.num_training_batches
        for layer, mixture in enumerate(self.mixtures):
            mixture.reseed(step * len(self.mixtures) + layer)
            mixture.set_epoch(epochs)
        seen = self.model(text)
        with torch.no_grad():
            taught: Seen = self.aside[0](text)
        pairs = zip(self.mixtures, seen.routings, strict=True)
        penalty = sum(mixture.auxiliary_loss([one], **self.weights) for mixture, one in pairs)
        for mixture in self.mixtures:
            mixture.on_step_end()
        distance = hidden_distance(seen.hidden, taught.hidden, text.mask_BL)
        distance = distance + symmetric_kl(seen.logits, taught.logits)
        loss = task_loss(seen.logits, labels_BT)
        return loss + self.settings.distill * distance + penalty
