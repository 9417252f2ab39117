"""Validation, test and prediction in Lightning's hooks."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from recsys_moe.artifact.calibration import Calibrations
from recsys_moe.artifact.evaluation import Evaluation, add_rows, merged
from recsys_moe.data.rows import Batch
from recsys_moe.kinds import by_task, kind_of
from recsys_moe.model.recommender import Recommender
from recsys_moe.seeds import stream_seed
from recsys_moe.train.encoders import finish
from recsys_moe.train.finite import refuse
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.processes.devices import on_first
from recsys_moe.train.set_up import SetUp


class EvaluationSteps(SetUp):
    """Validation scores the model in training; test and prediction the one that is saved, where
    ids without a training row have the OOV embedding.

    Logged: `val/loss`, `val/<task>/<metric>`, and the same with `test`.
    """

    _scored: tuple[Recommender, ...] = ()
    """The finished model, while Trainer.test or Trainer.predict runs; no part of this module."""

    def on_validation_epoch_start(self) -> None:
        self._begin(self.model)
        self._keep_pools(True)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if len(batch.user):  # no rows where only other processes have batches
            self._evaluation.update(self.model(batch.request), batch.labels)

    def on_validation_epoch_end(self) -> None:
        self._keep_pools(False)
        result = on_first(self._evaluation, lambda parts: merged(parts).result("val"))
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self._log_epoch_sums()
        self._log_result("val", result)

    def _keep_pools(self, is_on: bool) -> None:
        if self.model.encoders is not None:
            self.model.encoders.keep_pools(is_on)

    def _log_epoch_sums(self) -> None:
        """Log the means of the training epoch so far."""

    def on_test_start(self) -> None:
        self._scored = (self._finished(),)

    def on_test_epoch_start(self) -> None:
        self._begin(self._scored[0], self._calibrations(self._scored[0]))

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        if len(batch.user):
            self._evaluation.update(self._scored[0](batch.request), batch.labels)

    def on_test_epoch_end(self) -> None:
        result = on_first(self._evaluation, lambda parts: merged(parts).result("test"))
        self._log_result("test", result)

    def on_test_end(self) -> None:
        self._scored = ()

    def on_predict_start(self) -> None:
        self._scored = (self._finished(),)
        self._reseed(self._scored[0])

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Predictions (B,) of each task by name; of a class by TASK_CLASS."""
        kinds = [kind_of(task) for task in self.schema.tasks]
        logits = by_task(self._scored[0](batch.request).logits_BT, kinds)
        parts = zip(self.schema.tasks, kinds, logits, strict=True)
        found = [kind.predictions(task.name, logits_B) for task, kind, logits_B in parts]
        return {name: values_B for one in found for name, values_B in one.items()}

    def on_predict_end(self) -> None:
        self._scored = ()

    def _begin(self, model: Recommender, calibrations: Calibrations | None = None) -> None:
        self._reseed(model)
        self._evaluation = Evaluation(self.schema, self.config, calibrations)

    def _reseed(self, model: Recommender) -> None:
        """Only routers that sample at inference draw."""
        number, seed = self.global_rank, self.config.trainer.seed
        model.reseed(stream_seed(seed, "validation", number) if number else seed)

    def _finished(self) -> Recommender:
        model = self.averaged_model()
        model, _ = finish(model, self.config, self.schema, self.trained)
        return model.to(self.device).eval()

    def _calibrations(self, model: Recommender) -> Calibrations:
        """Fitted on the validation split, as those of a saved model."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, RecDataModule):
            return {}
        evaluation = Evaluation(self.schema, self.config)
        add_rows(evaluation, model, data.val_batches(), self.config)
        return evaluation.calibrate()

    def _log_result(self, split: str, result: dict[str, Any]) -> None:
        self._check_finite(result["loss"], "validation" if split == "val" else split)
        self.log(f"{split}/loss", result["loss"], prog_bar=True)
        for task, metrics in result["tasks"].items():
            for name, value in metrics.items():
                if isinstance(value, float):
                    self.log(f"{split}/{task}/{name}", value)
        for task, routing in result["routing"].items():
            self.log(f"{split}/{task}/max_load", max(routing["load"]))
            self.log(f"{split}/{task}/experts_per_example", routing["experts_per_example"])

    def _check_finite(self, loss: Tensor | float, split: str) -> None:
        if not math.isfinite(float(loss)):
            refuse(f"the {split} loss", self.global_step, float(loss))
