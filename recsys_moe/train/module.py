"""The LightningModule: losses and optimizer. No architecture here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys_moe.config.build import build_weighting, training_loss_weights
from recsys_moe.config.command_line import Sections
from recsys_moe.config.settings import Config, as_config
from recsys_moe.data.rows import Batch
from recsys_moe.model.output import Output
from recsys_moe.model.tasks import Counts, step_counts
from recsys_moe.model.weighting import Step
from recsys_moe.seeds import stream_seed
from recsys_moe.train.cuda_graph import ReplayedSteps
from recsys_moe.train.evaluation_steps import EvaluationSteps
from recsys_moe.train.finite import not_finite, refuse
from recsys_moe.train.losses import TaskLosses, shifted
from recsys_moe.train.next_item import build_next_item
from recsys_moe.train.processes.devices import all_mean, all_sum, process_count
from recsys_moe.train.weighing import check_training, check_whole_steps, present, untouched
from recsys_moe.train.workarounds import makes_step, steps_per_epoch


class RecModule(ReplayedSteps, EvaluationSteps):
    """Trains a Recommender on masked, weighted losses of mixed kinds.

    Needs a RecDataModule, whose training rows set up biases, routers and encoders once. Random
    draws follow `trainer.seed` of the configuration and the step, so that a resumed Trainer repeats
    them; of the section `trainer` only `batch_size` and `seed` count where the Trainer is yours.
    Logged: `train/loss` (tasks only by their fixed weights, without penalties),
    `train/evaluated_share`, and results of validation and test; with `tasks.weighting`
    `train/<task>/factor`, by which it multiplied the loss of the task in the mean.
    With a router of two passes a step minimises the sum of both losses plus, per task,
    `consistency` times their disagreement; `train/loss` is then the mean of both.
    """

    def __init__(
        self,
        config: Sections | Config | dict[str, Any] | str | Path | None = None,
        schema_json: str | None = None,
    ) -> None:
        """`config`: its sections, the path of a file, or the name of a shipped configuration.
        `schema_json`: the text of schema.json; by default that of the data, when training starts.

        Raises ConfigError, and DataError for labels that float32 cannot hold.
        """
        super().__init__(as_config(config), schema_json)
        self.penalty_weights = self.config.penalties.model_dump()
        self._loss_sum, self._pairs = (torch.zeros((), dtype=torch.float64) for _ in range(2))
        self._rows = 0

    def _reset_epoch_sums(self) -> None:
        self._loss_sum.zero_()  # in place: a recorded step adds to these
        self._pairs.zero_()
        self._rows = 0

    def build(self, schema_json: str) -> None:
        super().build(schema_json)
        weights = training_loss_weights(self.config, self.schema)
        self.task_losses = TaskLosses(self.schema.tasks, weights)
        self.weighting = build_weighting(self.config, self.schema)
        self.next_item = build_next_item(self.config, self.schema)
        if self.next_item is not None:
            self.model.start_product(self.next_item.column)

    def forward(self, batch: Batch) -> Output:
        """Logits (B, T) and routings of a batch."""
        return self.model(batch.request)

    def losses(
        self, output: Output, labels_BT: Tensor, counts: Counts | None = None
    ) -> tuple[Tensor, Tensor]:
        """Weighted sum of the tasks' mean losses, and the weighted penalties.

        Averaged over processes, losses and penalties that are means over rows are means over all
        rows; the other penalties (switch, importance, load) are those of each process' part.
        """
        losses_T, penalties = self._parts(output, labels_BT, counts or self._counts(labels_BT))
        return losses_T.sum(), penalties

    def _parts(self, output: Output, labels_BT: Tensor, counts: Counts) -> tuple[Tensor, Tensor]:
        """`losses`, the first of each task. (T,), ()"""
        losses_T = self.task_losses(output, labels_BT, counts)
        penalties = self.model.auxiliary_loss(output, self.penalty_weights)
        penalties = penalties * (len(labels_BT) / counts.rows)
        if not len(labels_BT):  # a mean over no rows is NaN; its gradient is 0 everywhere
            penalties = penalties.nan_to_num()
        return losses_T, penalties

    def _counts(
        self, labels_BT: Tensor, weight_B: Tensor | None = None, user_B: Tensor | None = None
    ) -> Counts:
        of_rows = {"weight_B": weight_B, "user_B": user_B}
        return step_counts(labels_BT, all_sum, process_count(), **of_rows)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["epoch_sums"] = self._epoch_sums().cpu()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if self._trainer is not None and self.trainer.state.fn == "fit":  # which goes on
            sums = checkpoint["epoch_sums"] * (self.global_rank == 0)  # of all processes
            self._loss_sum, self._pairs = (one.clone() for one in sums[:2])
            self._rows = int(sums[2])

    def on_train_start(self) -> None:
        self._steps_per_epoch = steps_per_epoch(self.trainer)
        if self.weighting is not None:
            check_training(self, self.weighting)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        settings = self.config.trainer
        # From (seed, step, rank), not from a running generator: a resumed run draws the same.
        place = (self.global_step, self.global_rank, *self._part_of_step(batch_idx))
        seed = stream_seed(settings.seed, "step", *place)
        self.model.set_epoch(self.global_step / self._steps_per_epoch)
        self._loss_sum, self._pairs = (of.to(self.device) for of in (self._loss_sum, self._pairs))
        self._rows += len(batch.user)
        done = None
        if self.recorder is not None:
            self.model.reseed(seed)
            done = self.recorder(batch)
        trained, loss = self.step_losses(batch, seed) if done is None else done
        if batch_idx % settings.log_every_n_steps == 0:
            self._check_step(loss)
        return trained

    def step_losses(self, batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
        """What a training step minimises, and the loss that is logged, without gradient."""
        counts = self._counts(batch.labels, batch.weight, batch.user)
        outputs = self._passes(batch, seed)
        parts = [self._parts(output, batch.labels, counts) for output in outputs]
        losses, penalties = zip(*parts, strict=True)
        loss = trained = torch.stack([one_T.sum() for one_T in losses]).mean()
        factors_T = None
        if self.weighting is not None:
            losses_T = torch.stack(losses).mean(0)
            factors_T = self._factors(losses_T, batch)
            trained = (factors_T * losses_T).sum()
            self._replay = batch, counts, seed
        self._add_to_epoch(loss.detach() * counts.rows, outputs[0])
        extra = torch.stack(penalties).sum()
        if self.next_item is not None:
            extra = extra + sum(self.next_item(self.model, one, batch, seed) for one in outputs)
        if len(outputs) == 2:
            apart = outputs, batch.labels, counts, self.model.routers
            apart_T = self.task_losses.disagreement(*apart)
            extra = extra + (apart_T if factors_T is None else factors_T * apart_T).sum()
        if self._trainer is None or makes_step(self.trainer):
            self.model.on_step_end(all_sum)
        return len(outputs) * trained + extra, loss.detach()

    def _passes(self, batch: Batch, seed: int) -> list[Output]:
        """The outputs of a training step, one per pass of the router."""
        if self.recorder is None:  # else it is done: a recorded step cannot
            self.model.reseed(seed)
        return [self._shifted(batch) for _ in range(self.model.passes)]

    def _factors(self, losses_T: Tensor, batch: Batch) -> Tensor:
        """What the weighting multiplies the losses of the tasks by in this step. (T,)"""
        assert self.weighting is not None
        seed = stream_seed(self.config.trainer.seed, "weighting", self.global_step)
        present_T = present(batch, self.task_losses.weights)
        return self.weighting(Step(losses_T, present_T, all_mean, seed), self.model)

    def optimizer_step(self, *given: Any, **named: Any) -> None:
        """Lightning's, and a look back for weightings that ask for one."""
        if self.weighting is not None:  # a callback may change it at any time
            check_whole_steps(self.trainer.accumulate_grad_batches, self.weighting)
        super().optimizer_step(*given, **named)
        if self.weighting is None or not self.weighting.looks_back:
            return
        batch, counts, seed = self._replay
        precision = self.trainer.strategy.precision_plugin
        with torch.no_grad(), precision.train_step_context(), untouched(self.model):
            outputs = self._passes(batch, seed)
            losses = [self._parts(output, batch.labels, counts)[0] for output in outputs]
        self.weighting.on_step_end(all_mean(torch.stack(losses).mean(0)))

    def _part_of_step(self, batch_idx: int) -> tuple[int, ...]:
        """The second and later batches of a step (accumulate_grad_batches) draw anew."""
        of = 1 if self._trainer is None else self.trainer.accumulate_grad_batches
        return (number,) if (number := batch_idx % of) else ()

    def _shifted(self, batch: Batch) -> Output:
        return shifted(self.model(batch.request), batch, self.task_losses.kinds)

    def batch_losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """`losses` of one pass over a batch, as in a training step."""
        output = self._shifted(batch)
        counts = self._counts(batch.labels, batch.weight, batch.user)
        losses, penalties = self.losses(output, batch.labels, counts)
        if self.next_item is not None:
            penalties = penalties + self.next_item(self.model, output, batch, 0)
        return losses, penalties

    def _add_to_epoch(self, loss_sum: Tensor, output: Output) -> None:
        self._loss_sum += loss_sum
        if output.routings:
            selected_BE = reduce(torch.logical_or, [r.selected_BE for r in output.routings])
            self._pairs += selected_BE.sum()

    def _check_step(self, loss: Tensor) -> None:
        loss = all_sum(loss) / process_count()
        self._check_finite(loss, "training")
        refuse(not_finite(self._weights()), self.global_step)

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """All but the tables, which may be large; rows that are used show in the loss."""
        tables = {table.weight for table in self.model.tables}
        yield from ((name, p.detach()) for name, p in self.named_parameters() if p not in tables)

    def on_train_epoch_end(self) -> None:
        if self._rows:  # no validation has logged them
            self._log_epoch_sums()

    def _log_epoch_sums(self) -> None:
        """Means over the epoch. Here, because callbacks run before on_train_epoch_end.

        `train/evaluated_share`: (example, expert) pairs evaluated, of all there are.
        """
        loss_sum, pairs, rows = self._epoch_sums()
        self._check_finite(loss_sum, "training")
        self.log("train/loss", (loss_sum / rows.clamp(min=1)).float())
        if self.model.routers:
            share = pairs / (rows.clamp(min=1) * self.model.routers[0].shape.num_experts)
            self.log("train/evaluated_share", share.float())
        if self.weighting is not None:
            for task, factor in zip(self.schema.tasks, self.weighting.take_means(), strict=True):
                self.log(f"train/{task.name}/factor", factor)
        self._reset_epoch_sums()

    def mean_loss(self) -> float | None:
        """Over the rows of this process in the epoch so far, or None; waits for the device."""
        return float(self._loss_sum) / self._rows if self._rows else None

    def _epoch_sums(self) -> Tensor:
        """Of the epoch so far and all processes: loss times rows, evaluated pairs, rows. (3,)"""
        sums = (self._loss_sum, self._pairs, torch.tensor(self._rows))
        return all_sum(torch.stack([value.double().to(self.device) for value in sums]))
