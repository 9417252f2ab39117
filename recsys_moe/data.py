"""The LightningDataModule: batches of a prepared folder, straight from columnar memory."""

from __future__ import annotations

from pathlib import Path

import lightning

from recsys_moe.columns import Columns, EvalBatches, TrainBatches, load_columns
from recsys_moe.config import Config
from recsys_moe.schema import Schema
from recsys_moe.seeds import stream_seed


class RecDataModule(lightning.LightningDataModule):
    """Train and validation batches of a prepared folder for Lightning's loop."""

    def __init__(self, folder: Path, config: Config) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.config = config
        self.schema = Schema.load(self.folder)
        self._columns: dict[str, Columns] = {}

    def columns(self, split: str) -> Columns:
        """Columns of a split, read once."""
        if split not in self._columns:
            self._columns[split] = load_columns(
                self.folder, self.schema, split, self.config.data.max_memory_mb
            )
        return self._columns[split]

    def train_dataloader(self) -> TrainBatches:
        # Lightning asks again every epoch (reload_dataloaders_every_n_epochs=1).
        epoch = self.trainer.current_epoch if self.trainer else 0
        return TrainBatches(
            self.columns("train"),
            self.schema,
            self.config.trainer.batch_size,
            self.config.data.unseen_rate,
            stream_seed(self.config.trainer.seed, "shuffle", epoch),
        )

    def val_dataloader(self) -> EvalBatches:
        return EvalBatches(self.columns("val"), self.config.eval_rows)
