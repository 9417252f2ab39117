"""Finds the checkpoint to continue from and checks it against configuration and data."""

from __future__ import annotations

import logging
import os
import pickletools
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from recsys_moe.artifact.run_folder import (
    CHECKPOINTS,
    changed_files,
    checkpoint_files,
    data_hashes,
)
from recsys_moe.config.diff import flat
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.model.old_names import with_new_parts
from recsys_moe.schema import Schema
from recsys_moe.train.averaging import AVERAGE

logger = logging.getLogger("recsys_moe.fit")

CHECKPOINT_FORMAT = 1
"""Changes with what `fit` reads from a checkpoint; other formats are refused."""
LONGEST_NAME = 256
FORMAT, DATA_FILES = "recsys_moe_format", "data_files"
"""Keys that a checkpoint has in addition to Lightning's."""
MAY_CHANGE = (
    *("trainer.max_epochs", "trainer.patience", "trainer.min_delta", "trainer.log_every_n_steps"),
    *("trainer.checkpoint_every_n_steps", "data.eval_batch_size"),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.logger"),
)
"""Settings that a continued run may change."""


class Saved(NamedTuple):
    """A checkpoint that was read."""

    path: Path
    state: dict[str, Any]

    @property
    def finished(self) -> int:
        """Number of finished epochs."""
        return int(self._epochs["processed"])

    @property
    def is_inside(self) -> bool:
        """Did the run stop inside an epoch?"""
        return any(self._epochs[name] != self._epochs["processed"] for name in ("ready", "started"))

    @property
    def _epochs(self) -> dict[str, int]:
        return cast(dict[str, int], self.state["loops"]["fit_loop"]["epoch_progress"]["current"])


def find_checkpoint(out: Path, resume: str) -> Saved | None:
    """`resume`: `auto`, the newest readable checkpoint of `out` (None where there is none), or a
    path. Raises ConfigError when it, or every one of `out`, cannot be read."""
    if resume != "auto":
        return _read_named(Path(resume))
    paths = checkpoint_files(out)
    for path in paths:
        try:
            return read_checkpoint(path)
        except ValueError as error:
            logger.warning("%s; trying the one before", error)
    if paths:
        raise ConfigError(
            f"--resume auto: no checkpoint in {paths[0].parent} can be read; start again with "
            "--overwrite"
        )
    logger.info("%s has no checkpoint yet: starting a new run", out)
    return None


def _read_named(path: Path) -> Saved:
    if not path.is_file():
        raise ConfigError(f"--resume {path}: there is no checkpoint {path}; pass auto or a file")
    try:
        return read_checkpoint(path)
    except ValueError as error:
        raise ConfigError(f"--resume: {error}; --resume auto finds the newest good one") from None


def read_checkpoint(path: Path, *, of_fit: bool = True) -> Saved:
    """Raises ValueError when it is not a complete checkpoint of a RecModule, made by `fit`."""
    try:
        with zipfile.ZipFile(path) as archive:
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise zipfile.BadZipFile  # torch does not compress: a bomb
            damaged = archive.testzip()  # torch.load ignores flipped bits
            _check_names(archive)
        if damaged is None:
            return _checked(Saved(path, load_mapped(path)), of_fit)
        reason = f"{damaged} is damaged"
    except _OtherFormat:
        raise
    except zipfile.BadZipFile:
        reason = "it is cut off or no checkpoint at all"
    except Exception as error:  # a damaged pickle makes torch raise anything
        reason = type(error).__name__ + (f" {error}" if isinstance(error, OSError) else "")
    maker = "fit" if of_fit else "RecModule"
    raise ValueError(f"{path} cannot be read as a checkpoint of {maker}: {reason}")


def _check_names(archive: zipfile.ZipFile) -> None:
    """Raise BadZipFile for class names of absurd length: torch 2.13 takes a time of n**2 to refuse
    a name of n characters, minutes for a megabyte."""
    for pickled in (name for name in archive.namelist() if name.endswith("data.pkl")):
        try:
            names = [
                len(str(name))
                for opcode, name, _ in pickletools.genops(archive.read(pickled))
                if opcode.name in ("GLOBAL", "INST")
            ]
        except ValueError:  # it ends inside a name or a number
            raise zipfile.BadZipFile from None
        if max(names, default=0) > LONGEST_NAME:
            raise zipfile.BadZipFile


class _OtherFormat(ValueError):
    """A complete checkpoint of another format."""


def _checked(saved: Saved, of_fit: bool) -> Saved:
    """Raises _OtherFormat, and LookupError or TypeError where something is missing."""
    parameters = saved.state["hyper_parameters"]
    _ = saved.finished, dict(parameters["config"]), str.strip(parameters["schema_json"])
    found = saved.state.get(FORMAT)
    if of_fit and found != CHECKPOINT_FORMAT:
        raise _OtherFormat(
            f"{saved.path} is a checkpoint of format {found}; this version of recsys-moe "
            f"continues format {CHECKPOINT_FORMAT} only"
        )
    return saved


def load_mapped(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, memory-mapped except on Windows, which cannot replace a mapped
    file."""
    is_mapped = os.name == "posix"
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    named = {key: with_new_parts(state[key]) for key in ("state_dict", AVERAGE) if key in state}
    return {**state, **named}


def belongs_to(checkpoint: Path, out: Path) -> bool:
    """True when the checkpoint is one of the run folder `out`."""
    return (out / CHECKPOINTS).resolve() in checkpoint.resolve().parents


def check_resume(saved: Saved, config: Config, data: Path) -> None:
    """Raise ConfigError or DataError for the first difference that the run cannot continue with."""
    before = parse_config(saved.state["hyper_parameters"]["config"])
    _check_config(before, config)
    _check_epochs(saved, before, config)
    check_data(saved, data, "--resume")


def check_data(saved: Saved, data: Path, asked: str) -> None:
    """Raise DataError, beginning with `asked`, for other data than those of the checkpoint."""
    if Schema.from_json(saved.state["hyper_parameters"]["schema_json"]) != Schema.load(data):
        raise DataError(
            f"{asked}: {data} is not the data of this run; pass that, or start a new run"
        )
    changed = changed_files(saved.state[DATA_FILES], data_hashes(data))
    if changed:
        raise DataError(f"{asked}: {data / changed[0]} has changed since the run began")


def must_not_change(before: Config, now: Config) -> str | None:
    """The first key in which they differ and that a continued run may not change."""
    old, new = (dict(flat(config.model_dump(mode="json"))) for config in (before, now))
    others = sorted((old.keys() | new.keys()) - set(MAY_CHANGE))
    return next((key for key in others if old.get(key) != new.get(key)), None)


def _check_config(before: Config, now: Config) -> None:
    if (key := must_not_change(before, now)) is not None:
        old, new = (dict(flat(config.model_dump(mode="json"))).get(key) for config in (before, now))
        raise ConfigError(
            f"--resume: {key} must be {old}, as in the run so far, got {new}; "
            f"only {', '.join(MAY_CHANGE)} may change"
        )


def _check_epochs(saved: Saved, before: Config, now: Config) -> None:
    most = now.trainer.max_epochs
    if most < saved.finished:
        raise ConfigError(
            f"--resume: trainer.max_epochs must be at least {saved.finished}, the finished epochs, "
            f"got {most}"
        )
    if now.optim.schedule == "cosine" and most != before.trainer.max_epochs:
        raise ConfigError(
            f"--resume: trainer.max_epochs must be {before.trainer.max_epochs}, the end of "
            f"optim.schedule=cosine, got {most}; start a new run for more"
        )
