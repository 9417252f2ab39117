"""From a trained module to a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning

from recsys_moe.artifact.export import MODEL
from recsys_moe.errors import ConfigError
from recsys_moe.files import check_out
from recsys_moe.train.averaging import averaged, of_model
from recsys_moe.train.finalize import judge
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from recsys_moe.train.resume import read_checkpoint


def save_model(
    module: RecModule | lightning.Trainer,
    out: str | Path,
    *,
    data: str | Path | None = None,
    ckpt_path: str | Path | None = None,
) -> dict[str, Any]:
    """Write the model folder that `predict`, `serve` and Predictor read.

    `module`: trained, or its Trainer. `out`: the folder; an older model there is replaced. `data`:
    the prepared folder; by default that of the module's Trainer. `ckpt_path`: a checkpoint whose
    weights are saved instead, or `best`, that of the Trainer's ModelCheckpoint. Where weights are
    averaged (`optim.ema_decay`) the average is saved. The module stays as it is.
    Returns the evaluation on the validation split, from which probabilities are calibrated; of
    several processes all but the first return {}. Raises ConfigError and DataError.
    """
    trained = module.lightning_module if isinstance(module, lightning.Trainer) else module
    if not isinstance(trained, RecModule):
        raise ConfigError(f"save_model needs a RecModule, got {type(trained).__name__}")
    trainer = module if isinstance(module, lightning.Trainer) else module._trainer
    if trainer is not None and not trainer.is_global_zero:
        return {}
    out, datamodule = Path(out), _data_of(trained, trainer, data)
    check_out(out, MODEL, True, {"data": datamodule.folder})
    trained.set_up(datamodule)
    model, epoch = trained.averaged_model().cpu(), trained.current_epoch
    if ckpt_path is not None:
        state = _state(trainer, ckpt_path)
        model.load_state_dict(of_model(averaged(state)))
        epoch = state["epoch"] + 1
    judged = judge(model, trained, datamodule, epoch)
    judged.save(out, trained, datamodule)
    return judged.result


def _data_of(
    module: RecModule, trainer: lightning.Trainer | None, data: str | Path | None
) -> RecDataModule:
    """Raises ConfigError where neither `data` nor a Trainer names a prepared folder."""
    if data is not None:
        return RecDataModule(data, module.config)
    attached = None if trainer is None else trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(attached, RecDataModule):
        raise ConfigError("save_model: data must be a prepared folder for a module without Trainer")
    return attached


def _state(trainer: lightning.Trainer | None, ckpt_path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint. Raises ConfigError where there is none."""
    path = Path(ckpt_path)
    if ckpt_path == "best":
        saved = None if trainer is None else trainer.checkpoint_callback
        if not (best := getattr(saved, "best_model_path", "")):
            raise ConfigError(
                "save_model: ckpt_path=best needs a Trainer with ModelCheckpoint(monitor=...) that "
                "has saved; pass the path of a checkpoint"
            )
        path = Path(best)
    if not path.is_file():
        raise ConfigError(f"save_model: there is no checkpoint {path}")
    try:
        return read_checkpoint(path, of_fit=False).state
    except ValueError as error:
        raise ConfigError(f"save_model: {error}") from None
