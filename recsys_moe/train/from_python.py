"""`recsys_moe.fit`: training from Python, where settings are optional and a notebook may watch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from recsys_moe.config.settings import Config, unvalidated
from recsys_moe.errors import ConfigError, UserError
from recsys_moe.frames import is_frame
from recsys_moe.train import fit as training
from recsys_moe.train.notebook import printed_lines

logger = logging.getLogger("recsys_moe.fit")
Settings = Config | Mapping[str, Any] | str | os.PathLike[str]


def fit(
    data: Any,
    out: Any,
    config: Any = None,
    *,
    overwrite: bool = False,
    resume: str | None = None,
    init_from: str | Path | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Train a model, keep the best epoch by `trainer.monitor`, and save its model and evaluation.

    `data`: the folder that `prepare` wrote. `out`: the run folder, which `Predictor.load` reads.
    `config`: the name of a shipped configuration, a YAML file, a Config, or sections of settings
    as in a file; None: what suits the data (`recsys-moe config explain`). `overwrite`:
    replace the run in `out` when the new one is complete. `resume`: `auto` (the newest readable
    checkpoint of `out`, or a new run where there is none) or the path of a checkpoint.
    `init_from`: a run or model folder whose weights a new run starts from (warm start); `config`
    then overrides the settings of that model. `minutes`: train as many epochs as are measured to
    end in that time.

    In a notebook it shows a progress bar and prints a line per epoch. Returns the evaluation of
    the best epoch on the validation split; on several devices all processes but the first return
    {}. Raises ConfigError, DataError, RunError and Interrupted.
    """
    if isinstance(data, Config | Mapping):  # the order before: fit(config, data, out)
        logger.warning(
            "fit(config, data, out) is now fit(data, out, config); the old order will be removed "
            "in the next version"
        )
        data, out, config = out, config, data
    how: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "init_from": init_from}
    how["minutes"] = minutes
    with printed_lines():
        folders = _folder("data", data), _folder("out", out)
        try:
            return training.fit(unvalidated(config, warn=True), *folders, **how)
        except UserError as error:
            error.args = (_in_python(str(error)),)
            raise


def _in_python(message: str) -> str:
    """With options of the command as arguments of `fit`."""
    message = message.replace("--resume auto", 'resume="auto"')
    message = message.replace("--overwrite", "overwrite=True")
    for name in signature(fit).parameters:
        message = message.replace(f"--{name.replace('_', '-')}", name)
    return message


def _folder(name: str, given: Any) -> Path:
    if isinstance(given, str | os.PathLike):
        return Path(given)
    kind = type(given).__name__
    if is_frame(given):
        raise ConfigError(
            f"{name} must be a prepared folder, got a {kind}; call recsys_moe.prepare(..., "
            "out=FOLDER) on it and pass FOLDER"
        )
    raise ConfigError(f"{name} must be the path of a folder, got {kind}")
