"""RecTools' SASRec on the future of MovieLens, in an environment of its own.

    pip install "rectools[torch]==0.19.0" "pyarrow<21"
    python -m research.time_peers.sasrec --ml-1m DIR --protocol cut --csv FILE

Its own defaults (256 wide), but for sessions of 200 and as many epochs as its validation loss, of
the last event of each user before the ranked ones, goes on falling; each epoch is a line. With
`--folder` each epoch is kept there, and the same command goes on. Axes: B sessions, L places, D
width, I items.
"""

from __future__ import annotations

import argparse
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel
from torch import Tensor

from research.time_peers.lists import figures
from research.time_peers.log import Log
from research.time_peers.sequences import LENGTH, Score, Split, arguments, ranks, write

PATIENCE = 10
LOSS = "val_loss"


class Best(Callback):
    """The weights of the epoch with the least validation loss, in memory."""

    def __init__(self) -> None:
        self.loss, self.epoch, self.weights = float("inf"), 0, {}

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        pl_module.is_fitted = self.epoch > 0  # or it would draw its weights anew

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        loss = float(trainer.callback_metrics[LOSS])
        print(f"epoch {trainer.current_epoch + 1}: validation loss {loss:.4f}", flush=True)
        if loss < self.loss:
            self.loss, self.epoch = loss, trainer.current_epoch + 1
            self.weights = deepcopy(pl_module.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)


class Resuming(Trainer):
    """Goes on from the last epoch in its folder, where there is one."""

    def fit(self, *args: Any, **kwargs: Any) -> None:
        kept = self.checkpoint_callback
        last = Path(kept.dirpath or "") / "last.ckpt" if isinstance(kept, ModelCheckpoint) else None
        super().fit(*args, ckpt_path=last if last and last.exists() else None, **kwargs)


def main() -> None:
    options, log, parts = arguments(__doc__)
    begun = time.perf_counter()
    model, best = fitted(log, parts, options)
    minutes = (time.perf_counter() - begun) / 60
    rank_N = ranks(scorer(model, log), log, parts.ranked)
    found = {"epoch": best.epoch, "minutes": minutes, **figures(rank_N)}
    write(options, f"SASRec of RecTools, {options.width} wide", found)


def fitted(log: Log, parts: Split, options: argparse.Namespace) -> tuple[Any, Best]:
    """The model with the weights of its best epoch."""
    seed_everything(options.seed)

    taken = log.taken(parts.fitted | parts.chosen)
    place = pd.Timestamp("2000-01-01") + pd.to_timedelta(np.arange(len(taken.user)), unit="s")
    events = {Columns.User: taken.user, Columns.Item: taken.item, Columns.Datetime: place}
    frame = pd.DataFrame({**events, Columns.Weight: 1.0})
    model = SASRecModel(
        n_factors=options.width, session_max_len=LENGTH, verbose=0,
        get_val_mask_func=is_chosen,
        get_trainer_func=trainer,
        get_trainer_func_kwargs={"epochs": options.epochs, "folder": options.folder},
    )  # fmt: skip
    model.fit(Dataset.construct(frame))
    best = next(one for one in model.fit_trainer.callbacks if isinstance(one, Best))  # a copy
    model.lightning_model.load_state_dict(best.weights)
    return model, best


def trainer(epochs: int, folder: str | None) -> Trainer:
    kept: list[Callback] = [Best(), EarlyStopping(LOSS, patience=PATIENCE)]
    if folder:  # after the others, whose states it keeps
        kept.append(ModelCheckpoint(folder, save_top_k=0, save_last=True))
    return Resuming(
        max_epochs=epochs, callbacks=kept, logger=False, enable_progress_bar=False,
        num_sanity_val_steps=0, enable_checkpointing=bool(folder),
    )  # fmt: skip


def is_chosen(events: pd.DataFrame) -> np.ndarray:
    last = events.groupby(Columns.User)[Columns.Datetime].transform("max")
    return (events[Columns.Datetime] == last).to_numpy()


def scorer(model: Any, log: Log) -> Score:
    """Inner products of the last place with all items; items it was not fitted on come last."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = model.lightning_model.torch_model.eval().to(device)
    fitted_K = model.data_preparator.item_id_map.external_ids
    item_K = fitted_K[np.array([isinstance(one, int | np.integer) for one in fitted_K])]
    own_I = np.zeros(log.items, np.int64)
    items = item_K.astype(np.int64)
    own_I[items] = model.data_preparator.item_id_map.convert_to_internal(items)
    own_I = torch.as_tensor(own_I, device=device)

    def score(token_BL: Tensor, ago_BL: Tensor) -> Tensor:
        item_ID = net.item_model.get_all_embeddings()
        own_BL = torch.where(token_BL > 0, own_I[(token_BL - 1).clamp(min=0)], 0)
        said_BD = net.encode_sessions({"x": own_BL}, item_ID)[:, -1]
        return (said_BD @ item_ID.T)[:, own_I].masked_fill(own_I == 0, -torch.inf)

    return score


if __name__ == "__main__":
    main()
