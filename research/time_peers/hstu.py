"""torch-rechub's HSTU on the future of MovieLens, in an environment of its own.

    pip install torch-rechub==0.9.0 torch pyarrow
    python -m research.time_peers.hstu --ml-1m DIR --protocol cut --csv FILE

The sizes of its own example for MovieLens (256 wide, 2 layers, 8 heads, Adam at .001), epochs of
its own trainer, stopped as it stops: by the accuracy of the last event of each user before the
ranked ones. It reads how long before the last event the others were, and not the time of the
target. Windows of 200 events instead of one per event: the trainer's loss is of all places of a
window. With `--folder` each epoch is kept there, and the same command goes on.
"""

from __future__ import annotations

import argparse
import time
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch_rechub.models.generative import HSTUModel
from torch_rechub.trainers.seq_trainer import SeqTrainer
from torch_rechub.utils.data import SequenceDataGenerator

from research.time_peers.lists import figures
from research.time_peers.log import Log
from research.time_peers.sequences import LENGTH, Score, Split, arguments, ranks, windows, write

BATCH = 128
PATIENCE = 10
KEPT = "last.pt"


def main() -> None:
    options, log, parts = arguments(__doc__)
    begun = time.perf_counter()
    model, epoch = fitted(log, parts, options)
    minutes = (time.perf_counter() - begun) / 60
    rank_N = ranks(scorer(model), log, parts.ranked)
    found = {"epoch": epoch, "minutes": minutes, **figures(rank_N)}
    write(options, f"HSTU of torch-rechub, {options.width} wide", found)


def fitted(log: Log, parts: Split, options: argparse.Namespace) -> tuple[HSTUModel, int]:
    """The model with the weights of its best epoch, and which that is, from 1."""
    torch.manual_seed(options.seed)
    model = HSTUModel(
        log.items + 1, d_model=options.width, n_heads=8, n_layers=2,
        max_seq_len=LENGTH, dropout=0.1,
    )  # fmt: skip
    trainer = SeqTrainer(model, device="cuda" if torch.cuda.is_available() else "cpu")
    loaders = [loader(log, ends(log, parts)), loader(log, np.flatnonzero(parts.chosen))]
    kept = Path(options.folder, KEPT) if options.folder else None
    state = loaded(kept, trainer)
    while state.epoch < options.epochs and state.epoch - state.best < PATIENCE:
        learn(trainer, loaders, state)
        if kept:
            save(kept, trainer, state)
    model.load_state_dict(state.weights)
    return model.eval(), state.best


@dataclass
class State:
    epoch: int = 0
    best: int = 0
    """Epoch of the highest accuracy, from 1."""
    accuracy: float = -1.0
    weights: dict[str, Tensor] = field(default_factory=dict)


def learn(trainer: SeqTrainer, loaders: list[DataLoader], state: State) -> None:
    """One epoch more."""
    trainer.train_one_epoch(loaders[0])
    loss, accuracy = trainer.evaluate(loaders[1])
    state.epoch += 1
    print(f"epoch {state.epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
    if accuracy > state.accuracy:
        state.best, state.accuracy = state.epoch, accuracy
        state.weights = deepcopy(trainer.model.state_dict())


def save(path: Path, trainer: SeqTrainer, state: State) -> None:
    parts = {"model": trainer.model, "optimizer": trainer.optimizer}
    saved = {name: part.state_dict() for name, part in parts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state": vars(state), "random": torch.get_rng_state(), **saved}, path)


def loaded(path: Path | None, trainer: SeqTrainer) -> State:
    """As `save` left all; the beginning where there is nothing."""
    if path is None or not path.exists():
        return State()
    saved = torch.load(path, weights_only=True)
    trainer.model.load_state_dict(saved["model"])
    trainer.optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
    return State(**saved["state"])


def ends(log: Log, parts: Split) -> np.ndarray:
    """Events that end a window: the last fitted one of a user, and each `LENGTH` before it."""
    place = np.flatnonzero(parts.fitted)
    taken = log.taken(parts.fitted)
    left_N = np.searchsorted(taken.user, taken.user, side="right") - 1 - np.arange(len(place))
    is_first = np.r_[True, taken.user[1:] != taken.user[:-1]]
    return place[(left_N % LENGTH == 0) & ~is_first]


def loader(log: Log, places: np.ndarray) -> DataLoader:
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
