"""torch-rechub's HSTU on the future of MovieLens-1M, in an environment of its own.

    pip install torch-rechub==0.9.0 torch pyarrow
    python -m research.time_peers.hstu --ml-1m DIR --protocol cut --csv FILE

The sizes of its own example for MovieLens (256 wide, 2 layers, 8 heads, Adam at .001), in its own
trainer, which stops by the accuracy of the last event of each user before the ranked ones. It reads
how long before the last event the others were, and not the time of the target. Windows of 200
events instead of one per event: the trainer's loss is of all places of a window.
"""

from __future__ import annotations

import argparse
import time
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor
from torch_rechub.models.generative import HSTUModel
from torch_rechub.trainers.seq_trainer import SeqTrainer
from torch_rechub.utils.data import SequenceDataGenerator

from research.time_peers.lists import figures
from research.time_peers.log import Log
from research.time_peers.sequences import LENGTH, Score, Split, arguments, ranks, windows, write

BATCH = 128
PATIENCE = 10


def main() -> None:
    options, log, parts = arguments(__doc__)
    begun = time.perf_counter()
    model, epochs = fitted(log, parts, options)
    minutes = (time.perf_counter() - begun) / 60
    rank_N = ranks(scorer(model), log, parts.ranked)
    found = {"epoch": epochs, "minutes": minutes, **figures(rank_N)}
    write(options, f"HSTU of torch-rechub, {options.width} wide", found)


def fitted(log: Log, parts: Split, options: argparse.Namespace) -> tuple[HSTUModel, int]:
    """The model with the weights of its best epoch, and how many epochs it took."""
    torch.manual_seed(options.seed)
    model = HSTUModel(
        log.items + 1, d_model=options.width, n_heads=8, n_layers=2,
        max_seq_len=LENGTH, dropout=0.1,
    )  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with TemporaryDirectory() as folder:
        trainer = SeqTrainer(
            model, n_epoch=options.epochs, earlystop_patience=PATIENCE, device=device,
            model_path=folder,
        )  # fmt: skip
        loaders = [loader(log, ends(log, parts)), loader(log, np.flatnonzero(parts.chosen))]
        history = trainer.fit(*loaders)
    return model.eval(), int(np.argmax(history["val_accuracy"])) + 1


def ends(log: Log, parts: Split) -> np.ndarray:
    """Events that end a window: the last fitted one of a user, and each `LENGTH` before it."""
    place = np.flatnonzero(parts.fitted)
    taken = log.taken(parts.fitted)
    left_N = np.searchsorted(taken.user, taken.user, side="right") - 1 - np.arange(len(place))
    is_first = np.r_[True, taken.user[1:] != taken.user[:-1]]
    return place[(left_N % LENGTH == 0) & ~is_first]


def loader(log: Log, places: np.ndarray) -> torch.utils.data.DataLoader:
    token_BL, ago_BL = windows(log, places)
    place_BL = np.broadcast_to(np.arange(LENGTH), token_BL.shape)
    made = SequenceDataGenerator(token_BL, place_BL, log.item[places] + 1, ago_BL)
    return made.generate_dataloader(batch_size=BATCH, num_workers=0)[0]


def scorer(model: HSTUModel) -> Score:
    def score(token_BL: Tensor, ago_BL: Tensor) -> Tensor:
        return model(token_BL, ago_BL)[:, -1, 1:]

    return score


if __name__ == "__main__":
    main()
