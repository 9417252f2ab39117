"""The LightningDataModule: batches of a prepared folder, in memory or streamed from disk."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import lightning
from torch.utils.data import DataLoader

from recsys_moe.config.encoders import chosen_context, chosen_features
from recsys_moe.config.settings import Config
from recsys_moe.data.batches import EvalBatches, TrainBatches
from recsys_moe.data.columns import Columns, Rows
from recsys_moe.data.negatives import ResampledNegatives
from recsys_moe.data.streaming import StreamBatches, open_rows, rows_within
from recsys_moe.schema import Schema
from recsys_moe.seeds import stream_seed
from recsys_moe.train.workarounds import first_batch


class RecDataModule(lightning.LightningDataModule):
    """Train and validation batches of a prepared folder for Lightning's loop."""

    def __init__(self, folder: Path, config: Config) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.config = config
        self.schema = Schema.load(self.folder)
        self._rows: dict[str, Rows] = {}

    def rows(self, split: str) -> Rows:
        """A split, opened once: in memory where it fits (training: in the shuffle buffer)."""
        if split not in self._rows:
            memory = self.config.data.max_memory_mb
            most = self.window if split == "train" else self._rows_within(memory)
            context = chosen_context(self.config, self.schema)
            rows = open_rows(self.folder, self.schema, split, most, context=context)
            self._rows[split] = rows
        return self._rows[split]

    def open(self) -> None:
        """Open what training reads, before anything is written. Raises ConfigError, DataError."""
        for split in ("train", "val"):
            self.rows(split)
        _ = self._negatives

    @property
    def window(self) -> int:
        """Rows of the shuffle buffer."""
        settings = self.config.data
        if settings.shuffle_buffer != "auto":
            return settings.shuffle_buffer
        shifted = bool(settings.popularity_exponent) or settings.user_exponent != 1
        return self._rows_within(settings.max_memory_mb, shifted)

    def _rows_within(self, megabytes: int, shifted: bool = False) -> int:
        context = len(chosen_context(self.config, self.schema))
        return rows_within(self.schema, megabytes, shifted=shifted, context=context)

    def train_dataloader(self) -> TrainBatches | StreamBatches:
        # Lightning asks again every epoch (reload_dataloaders_every_n_epochs=1).
        if self.trainer is None:
            return self.train_batches(0)
        start = first_batch(self.trainer)
        rank, world = self._share
        epoch = self.trainer.current_epoch
        return self.train_batches(epoch, rank=rank, world=world, start=start)

    @property
    def _share(self) -> tuple[int, int]:
        """Which process of how many this is."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def train_batches(
        self, epoch: int, *, rank: int = 0, world: int = 1, start: int = 0
    ) -> TrainBatches | StreamBatches:
        """Batches of an epoch for process `rank` of `world`, from batch `start` on.

        `trainer.batch_size` is what all processes take together.
        """
        rows, settings = self._training_rows(epoch), self.config
        seed = stream_seed(settings.trainer.seed, "shuffle", epoch)
        size, rate = settings.trainer.batch_size // world, settings.data.id_dropout
        ids_only = settings.model.has_encoders
        draws: dict[str, Any] = {"id_dropout": rate, "ids_only": ids_only, "seed": seed}
        draws["features_only"] = self._features_only
        share: dict[str, Any] = {"rank": rank, "world": world, "start": start}
        if isinstance(rows, Columns):
            return TrainBatches(rows, self.schema, size, **draws, **share)
        return StreamBatches(rows, self.schema, size, **draws, **share, window=self.window)

    @cached_property
    def _features_only(self) -> tuple[float, float]:
        """`data.features_only_rate` of users and of items, 0 where these have no features."""
        rate, chosen = (
            self.config.data.features_only_rate,
            chosen_features(self.config, self.schema),
        )
        return (rate if chosen["user"] else 0.0, rate if chosen["item"] else 0.0)

    def _training_rows(self, epoch: int) -> Rows:
        if self._negatives is None:
            return self.rows("train")
        return self._negatives.rows_of(stream_seed(self.config.trainer.seed, "negatives", epoch))

    @cached_property
    def _negatives(self) -> ResampledNegatives | None:
        """With data.resample_negatives. Raises ConfigError."""
        if not self.config.data.resample_negatives:
            return None
        settings = self.config.data
        powers = settings.popularity_exponent, settings.user_exponent
        return ResampledNegatives(self.rows("train"), self.schema, *powers)

    def val_dataloader(self) -> EvalBatches | DataLoader[Any]:
        rank, world = self._share
        batches = self.val_batches(rank=rank, world=world)
        if len(batches):
            return batches
        # One empty batch: without any, Lightning would skip the validation of this process alone.
        return DataLoader([self.rows("val").group(0).take(slice(0))], batch_size=None)  # type: ignore[arg-type]

    def val_batches(self, *, rank: int = 0, world: int = 1) -> EvalBatches:
        """Batches of the validation split in order: part `rank` of `world`."""
        return EvalBatches(self.rows("val"), self.config.eval_rows, rank=rank, world=world)
