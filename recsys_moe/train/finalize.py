"""Turns the best checkpoint of a run into an evaluated model folder."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys_moe.artifact.baselines import baselines, missed
from recsys_moe.artifact.calibration import Calibrations
from recsys_moe.artifact.evaluate import recorded_data
from recsys_moe.artifact.evaluation import Evaluation, add_rows
from recsys_moe.artifact.model_folder import save_artifact
from recsys_moe.artifact.reading import TRAINED
from recsys_moe.artifact.run_folder import BEST, CHECKPOINTS, RUN
from recsys_moe.config.files import read_config_file
from recsys_moe.config.settings import parse_config
from recsys_moe.data.streaming import positive_items, trained_ids
from recsys_moe.errors import ConfigError, DataError, RunError
from recsys_moe.files import is_whole, write_json
from recsys_moe.model.recommender import Recommender
from recsys_moe.train.averaging import averaged
from recsys_moe.train.encoders import bag_rows, finish
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from recsys_moe.train.new_ids import compare_new_ids
from recsys_moe.train.processes.memory import flushed_denormals
from recsys_moe.train.resume import Saved, check_data, read_checkpoint
from recsys_moe.train.warm_start import set_up

logger = logging.getLogger("recsys_moe.fit")


def how_to_finish(run: Path) -> str:
    """End of the last line of a run that ends early; empty before its first epoch has ended."""
    if not (run / CHECKPOINTS / BEST).is_file():
        return ""
    return f", or make a model of the best epoch so far: recsys-moe finish {shlex.quote(str(run))}"


@flushed_denormals()
def finish_early(run: str | Path, data: str | Path | None = None) -> dict[str, Any]:
    """Make the model of the best epoch of an interrupted run, as `fit` does at its end.

    The checkpoints stay, so that the run can continue. `data`: where its prepared folder is now, if
    it was moved. Returns what `fit` returns. Raises ConfigError, DataError and RunError.
    """
    run = Path(run)
    if not is_whole(run, RUN):
        raise DataError(f"{run} is not a run folder; pass one that `recsys-moe fit` wrote")
    if not (run / CHECKPOINTS / BEST).is_file():
        raise ConfigError(
            f"{run} has no best checkpoint: no epoch has ended; continue it with fit --resume auto"
        )
    folder = Path(data) if data else recorded_data(run)
    check_data(_read_best(run), folder, str(run))
    config = parse_config(read_config_file(str(run / "config.yaml")))
    datamodule = RecDataModule(folder, config)
    module = RecModule(config.model_dump(mode="json"), datamodule.schema.to_json())
    set_up(module, datamodule, bare=True)
    return finish_run(module, datamodule, folder, run)


def finish_run(
    module: RecModule, datamodule: RecDataModule, data: Path, out: Path
) -> dict[str, Any]:
    """Restore the best checkpoint, calibrate and evaluate it on `val`, write both and model/.

    Raises RunError where that checkpoint cannot be read.
    """
    schema, config = module.schema, module.config
    epoch, model = _best(module, out)
    rows = datamodule.rows("train")
    trained = trained_ids(rows, schema)
    _fill_untrained_rows(model, trained)
    bags, trained_encoders = bag_rows(model), model.encoders
    model, encoders = finish(model, config, schema)
    result, calibrations = _evaluate(model, module, datamodule)
    result |= {"epoch": epoch, "monitor": config.trainer.monitor}
    result["baselines"] = baselines(rows, datamodule.rows("val"), schema)
    for line in missed(result):
        logger.warning(line)
    result |= compare_new_ids(model, trained_encoders, datamodule)
    write_json(out / "evaluation" / "val.json", result)
    save_artifact(
        out / "model",
        model.state_dict(),
        config,
        data,
        seen=positive_items(rows, schema) | dict(zip(TRAINED, trained, strict=True)),
        card={"val": result},
        calibrations=calibrations,
        encoders=encoders,
        history=bags,
    )
    return result


def _best(module: RecModule, out: Path) -> tuple[int, Recommender]:
    """The epoch of the best checkpoint, from 1 on, and its model."""
    state = _read_best(out).state
    module.load_state_dict(averaged(state))
    return state["epoch"] + 1, module.model.cpu()


def _read_best(run: Path) -> Saved:
    try:
        return read_checkpoint(run / CHECKPOINTS / BEST)
    except ValueError as error:
        raise RunError(f"{error}; start again with --overwrite") from None


@torch.no_grad()
def _fill_untrained_rows(model: Recommender, trained: tuple[Tensor, Tensor]) -> None:
    """Replace embeddings of ids without a training row by the OOV embedding."""
    for table, is_trained_N in zip(model.tables, trained, strict=True):
        table.weight[:-1][~is_trained_N] = table.weight[-1].clone()


def _evaluate(
    model: Recommender, module: RecModule, datamodule: RecDataModule
) -> tuple[dict[str, Any], Calibrations]:
    evaluation = Evaluation(module.schema, module.config)
    add_rows(evaluation, model, datamodule.val_batches(), module.config)
    calibrations = evaluation.calibrate()  # before the result, which tells of it
    return evaluation.result("val"), calibrations
