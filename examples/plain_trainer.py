"""Train with a Trainer of your own: as `recsys-moe fit` does, with the same losses.

recsys-moe prepare synthetic --out data/demo
python examples/plain_trainer.py data/demo runs/plain
"""

from __future__ import annotations

import sys
from pathlib import Path

from lightning import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from recsys_moe import RecDataModule, RecModule, save_model

CONFIG = {
    "model": {"embedding_dim": 8, "num_experts": 4, "expert_dim": 16, "tower_dims": [8]},
    "trainer": {"batch_size": 64, "seed": 0},  # the Trainer decides on the rest
}


def main(data: str, out: str) -> list[float]:
    """Train, save and test; return the validation loss of the model and the loss on test."""
    module, datamodule = RecModule(CONFIG), RecDataModule(data)
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=CSVLogger(out),
        callbacks=[EarlyStopping("val/loss", patience=15), ModelCheckpoint(monitor="val/loss")],
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=datamodule)
    saved = save_model(trainer, Path(out) / "model", ckpt_path="best")
    (tested,) = trainer.test(module, datamodule=datamodule, ckpt_path="best")
    return [saved["loss"], tested["test/loss"]]


if __name__ == "__main__":
    main(*sys.argv[1:])
