"""Sets a module up for the data of a Trainer, once."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from recsys_moe.config.build import build_model, check_labels
from recsys_moe.config.settings import Config
from recsys_moe.data.columns import Rows
from recsys_moe.data.streaming import labelled, trained_ids, user_counts
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import first_columns, kind_of
from recsys_moe.model.old_names import with_new_parts
from recsys_moe.model.recommender import Recommender
from recsys_moe.schema import Schema
from recsys_moe.seeds import stream_seed
from recsys_moe.train.averaging import AVERAGE, WeightAverage, of_model
from recsys_moe.train.encoders import set_encoder_entries, standardise
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.warm_start import Start, copy_units, load_weights
from recsys_moe.train.workarounds import (
    check_not_for_cli,
    compile_model_alone,
    steps_per_epoch,
)


class SetUp(lightning.LightningModule):
    """Builds the model, and prepares it from the training rows before anything else happens."""

    schema: Schema
    model: Recommender
    trained: tuple[Tensor, Tensor]
    """bool (U,) and (I,): the user or item has a training row."""

    def __init__(self, config: Config, schema_json: str | None) -> None:
        super().__init__()
        self.config = config
        self.average = WeightAverage(config.optim.ema_decay)
        self._has_biases = self._is_set_up = False
        if schema_json is None:
            self._save_hyperparameters(None)
        else:
            self.build(schema_json)

    def _save_hyperparameters(self, schema_json: str | None) -> None:
        # Plain values, so that a checkpoint never holds a pickled class.
        config = self.config.model_dump(mode="json")
        self.save_hyperparameters({"config": config, "schema_json": schema_json})

    def build(self, schema_json: str) -> None:
        """The untrained model for the data of a schema.json. Raises ConfigError and DataError."""
        self._save_hyperparameters(schema_json)
        self.schema = Schema.from_json(schema_json)
        check_labels(self.schema)
        torch.manual_seed(stream_seed(self.config.trainer.seed, "init"))
        self.model = build_model(self.config, self.schema)

    def setup(self, stage: str) -> None:
        """Lightning's hook: `set_up` with the data of the Trainer. Raises ConfigError without."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, RecDataModule):
            self.set_up(data)
        elif not self._is_set_up:
            raise ConfigError(
                "RecModule needs the training rows of a RecDataModule, got "
                f"{type(data).__name__}; pass datamodule=RecDataModule(folder)"
            )
        compile_model_alone(self)

    def set_up(
        self, data: RecDataModule, start: Start | None = None, *, bare: bool = False
    ) -> None:
        """Prepare for the first step, once: routers, encoders and biases from the data, weights
        from `start`.

        `bare`: without biases and weights, which a checkpoint holds. A new id of a warm start
        begins with the OOV embedding; its biases and its experts by user are computed as in any
        run, in the units of the model. Raises ConfigError for other data than the module's.
        """
        if "schema" not in vars(self):
            self.build(data.schema.to_json())
        if self.schema != data.schema:
            raise ConfigError(
                f"RecModule must be trained and tested on the data it was made for, got those of "
                f"{data.folder}; make a new RecModule for them"
            )
        if self._is_set_up:
            return
        rows = data.rows("train")
        self.trained = trained_ids(rows, self.schema)
        self.start_routers(user_counts(rows, self.schema))
        self.start_encoders(data.folder, rows)
        if not (bare or self._has_biases):
            if start is not None:
                copy_units(self.model, start)
            self.start_biases(rows)
            if start is not None:
                load_weights(self.model, start)
        self._is_set_up = True

    def start_routers(self, counts_U: Tensor) -> None:
        """Set up the routers with the number of training rows of each known user. (U,)"""
        for task, router in enumerate(self.model.routers):
            router.stream.reseed(stream_seed(self.config.trainer.seed, "router", task))
            router.setup(counts_U)

    def start_biases(self, rows: Rows) -> None:
        """Fit the user and item biases, if any, to the training rows."""
        if self.model.biases is not None:
            kinds = [kind_of(task) for task in self.schema.tasks]
            for t, (column, kind) in enumerate(zip(first_columns(kinds), kinds, strict=True)):
                if kind.outputs == 1:
                    self.model.biases.fit(column, kind, partial(labelled, rows, t))

    def start_encoders(self, folder: Path, rows: Rows) -> None:
        """Give the encoders, if any, the features of the prepared `folder` and the bags of its
        training rows. Raises DataError."""
        set_encoder_entries(self.model.encoders, self.config, self.schema, folder=folder, rows=rows)
        standardise(self.model, rows)

    def averaged_model(self) -> Recommender:
        """A copy of the model with the average of its weights, if there is one."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(model.state_dict() | of_model(self.average.mean))
        return model

    def configure_callbacks(self) -> list[Callback]:
        """The average of the weights: as a callback it is up to date when others save."""
        return [self.average] if self.config.optim.ema_decay else []

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        if "schema" not in vars(self):
            check_not_for_cli(self)
        return super().parameters(recurse)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer()
        if self.config.optim.schedule == "constant":
            return optimizer
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self._epochs())
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def _epochs(self) -> int:
        """Of the whole training. Raises ConfigError where the Trainer has no end."""
        if self._trainer is None:
            return self.config.trainer.max_epochs
        if (epochs := self.trainer.max_epochs) is not None and epochs > 0:
            return int(epochs)
        steps = self.trainer.estimated_stepping_batches
        if steps == math.inf:
            raise ConfigError(
                "optim.schedule=cosine needs a Trainer with max_epochs or max_steps, got neither"
            )
        self.trainer.fit_loop.setup_data()  # which counts the batches
        return -(-int(steps) // steps_per_epoch(self.trainer))

    def plan(self, config: Config) -> None:
        """Train to the end of `config`, the same but for its number of epochs.

        After the first epoch: the second then has the rate that it would have by `config`.
        """
        self.config = config
        self._save_hyperparameters(self.hparams["schema_json"])
        for scheduler in (one.scheduler for one in self.trainer.lr_scheduler_configs):
            if isinstance(scheduler, torch.optim.lr_scheduler.CosineAnnealingLR):
                scheduler.T_max, scheduler.last_epoch = self._epochs(), 0
                for group, rate in zip(
                    scheduler.optimizer.param_groups, scheduler.base_lrs, strict=True
                ):
                    group["lr"] = rate
                scheduler.step()

    def make_optimizer(self) -> torch.optim.Adam:
        """Routers have their own learning rate and no weight decay: gradients of sampled ones are
        so small (docs/reference/routers.md) that decay would keep their gates at 0.

        Raises ConfigError for weights of float16: most squares of gradients would be 0 in it, and
        steps, which are divided by their roots, without bound.
        """
        if self._trainer is not None and self.trainer.precision == "16-true":
            raise ConfigError(
                "precision must keep the squares of small gradients, which Adam divides by, got "
                "16-true; use bf16-true or 16-mixed"
            )
        settings, gates = self.config.optim, self.model.slow_parameters()
        groups: list[dict[str, Any]] = [{"params": list(self.model.parameters())}]
        if gates and (settings.router_lr_multiplier != 1 or settings.weight_decay):
            known = {id(gate) for gate in gates}
            groups[0]["params"] = [p for p in self.model.parameters() if id(p) not in known]
            rate = settings.lr * settings.router_lr_multiplier
            groups.append({"params": gates, "lr": rate, "weight_decay": 0.0})
        common: dict[str, Any] = {"lr": settings.lr, "betas": settings.betas, "eps": settings.eps}
        # The fused Adam unscales gradients itself, when Lightning wants to clip them.
        clips = self._trainer is not None and self.trainer.gradient_clip_val
        fused = not (clips and self.trainer.precision in ("16-mixed", "bf16-mixed"))
        return torch.optim.Adam(groups, weight_decay=settings.weight_decay, fused=fused, **common)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for key in checkpoint.keys() & {"state_dict", AVERAGE}:
            checkpoint[key] = with_new_parts(checkpoint[key])
        self.average.mean = dict(checkpoint.get(AVERAGE, {}))
        self._has_biases = True
