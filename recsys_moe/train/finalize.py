"""Turns the best checkpoint of a run into an evaluated model folder."""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from recsys_moe.artifact.baselines import baselines, missed
from recsys_moe.artifact.calibration import Calibrations
from recsys_moe.artifact.epoch_metrics import EPOCH_METRICS, read_epochs
from recsys_moe.artifact.evaluate import recorded_data
from recsys_moe.artifact.evaluation import Evaluation, add_rows
from recsys_moe.artifact.model_folder import save_artifact
from recsys_moe.artifact.reading import TRAINED
from recsys_moe.artifact.remedies import remedies
from recsys_moe.artifact.run_folder import BEST, CHECKPOINTS, RUN
from recsys_moe.config.files import read_config_file
from recsys_moe.config.settings import parse_config
from recsys_moe.data.streaming import item_rows, positive_items
from recsys_moe.errors import ConfigError, DataError, RunError
from recsys_moe.files import is_whole, write_json
from recsys_moe.model.recommender import Recommender
from recsys_moe.train.averaging import averaged
from recsys_moe.train.encoders import bag_rows, finish, known_events, known_items
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from recsys_moe.train.new_ids import compare_new_ids
from recsys_moe.train.processes.memory import flushed_denormals
from recsys_moe.train.resume import Saved, check_data, read_checkpoint

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
    module = RecModule(config, datamodule.schema.to_json())
    module.set_up(datamodule, bare=True)
    return finish_run(module, datamodule, run)


def finish_run(module: RecModule, datamodule: RecDataModule, out: Path) -> dict[str, Any]:
    """Restore the best checkpoint, calibrate and evaluate it on `val`, write both and model/.

    Raises RunError where that checkpoint cannot be read.
    """
    epoch, model = _best(module, out)
    judged = judge(model, module, datamodule, epoch)
    if (epochs := out / EPOCH_METRICS).is_file():
        numbers = read_epochs(epochs)
        for line in remedies(judged.result, numbers, module.config, module.schema):
            logger.warning(line)
    write_json(out / "evaluation" / "val.json", judged.result)
    judged.save(out / "model", module, datamodule)
    return judged.result


@dataclass(frozen=True)
class Judged:
    """A finished model and its evaluation on the validation split."""

    model: Recommender
    cold_start: dict[str, Tensor]
    bags: dict[str, Tensor]
    calibrations: Calibrations
    result: dict[str, Any]

    def save(self, out: Path, module: RecModule, datamodule: RecDataModule) -> None:
        """Write the model folder."""
        seen = positive_items(datamodule.rows("train"), module.schema)
        if module.config.data.list_prior:
            seen |= item_rows(datamodule.rows("train"), module.schema)
        save_artifact(
            out,
            self.model.state_dict(),
            module.config,
            datamodule.folder,
            seen=seen | dict(zip(TRAINED, module.trained, strict=True)),
            card={"val": self.result},
            calibrations=self.calibrations,
            encoders=self.cold_start,
            history=self.bags,
            events=known_events(module.config, datamodule.folder, module.schema),
            items=known_items(module.config, datamodule.folder, module.schema),
        )


def judge(model: Recommender, module: RecModule, datamodule: RecDataModule, epoch: int) -> Judged:
    """Finish `model`, which changes it, and evaluate it on `val`; log what is worth a warning."""
    schema, config = module.schema, module.config
    bags, trained_encoders = bag_rows(model), model.encoders
    model, cold_start = finish(model, config, schema, module.trained)
    evaluation = Evaluation(schema, config)
    add_rows(evaluation, model, datamodule.val_batches(), config)
    calibrations = evaluation.calibrate()  # before the result, which tells of it
    result = evaluation.result("val") | {"epoch": epoch, "monitor": config.trainer.monitor}
    result["baselines"] = baselines(datamodule.rows("train"), datamodule.rows("val"), schema)
    for line in missed(result):
        logger.warning(line)
    result |= compare_new_ids(model, trained_encoders, datamodule)
    return Judged(model, cold_start, bags, calibrations, result)


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
