"""`trainer.logger`: Lightning's loggers, in addition to metrics.csv.

Nothing is sent over a network unless MLFLOW_TRACKING_URI names a server.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from recsys_moe.config.sections import LoggerName
from recsys_moe.errors import ConfigError
from recsys_moe.folders import PART

logger = logging.getLogger("recsys_moe.loggers")
WRITER = "tensorboard.summary.writer.event_file_writer"
PROJECT = "recsys-moe"
"""Experiment of MLflow, project of W&B."""
OPTIONAL = ("mlflow", "wandb")
"""Loggers whose package of the same name is optional."""
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}
"""Without it both packages report their use, and wandb prints between log lines."""


def check_logger(name: LoggerName) -> None:
    """Raise ConfigError where its package is missing."""
    if name in OPTIONAL and not _is_installed(name):
        raise ConfigError(
            f"trainer.logger={name} needs the package {name}, which is not installed: "
            f"pip install {name}, or use tensorboard or csv"
        )


def _is_installed(package: str) -> bool:
    """A folder without code does not count: wandb leaves one called wandb."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def open_logger(name: LoggerName, run: Path) -> Logger | Literal[False]:
    """The logger of a run; False for `csv`. MLflow and W&B write to the parent folder of `run`.

    Raises ConfigError as `check_logger`.
    """
    check_logger(name)
    if name == "csv":
        return False
    if name == "tensorboard":
        threading.excepthook = _hook
        return Events(run, name="", version="events")
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    title, beside = run.name.removesuffix(PART), run.absolute().parent
    beside.mkdir(parents=True, exist_ok=True)
    if name == "wandb":
        return WandbLogger(title, beside, project=PROJECT, offline=True)
    server = os.environ.get("MLFLOW_TRACKING_URI")
    return MLFlowLogger(
        PROJECT,
        run_name=title,
        tracking_uri=server or f"sqlite:///{beside / 'mlflow.db'}",
        artifact_location=None if server else str(beside / "mlruns"),
    )


class Events(TensorBoardLogger):
    """TensorBoard's logger; a failed write loses the curves, not the run."""

    _lost = False

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """See TensorBoardLogger."""
        self._try(partial(super().log_metrics, metrics, step))

    def log_hyperparams(self, *given: Any, **named: Any) -> None:
        self._try(partial(super().log_hyperparams, *given, **named))

    def save(self) -> None:
        self._try(super().save)

    def finalize(self, status: str) -> None:
        self._try(partial(super().finalize, status))

    def _try(self, work: Callable[[], None]) -> None:
        if self._lost:
            return
        try:
            work()
        except (OSError, ValueError) as error:
            # Lightning raises a ValueError of its own for every failed write.
            failure = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(failure, OSError):
                raise
            self._lost = True
            reason = failure.strerror or failure
            logger.warning("%s cannot be written: %s; continuing without it", self.log_dir, reason)


_others = threading.excepthook


def _hook(given: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread raises an OSError in its next call; suppress its traceback."""
    is_writer = type(given.thread).__module__ == WRITER
    if not (is_writer and isinstance(given.exc_value, OSError)):
        _others(given)


@contextmanager
def closing_logger(opened: Logger | None) -> Iterator[None]:
    """End the run of W&B; otherwise the next run of this process would log to it."""
    failed = True
    try:
        yield
        failed = False
    finally:
        # The property `experiment` would start a run.
        if isinstance(opened, WandbLogger) and opened._experiment is not None:
            opened._experiment.finish(exit_code=int(failed))
