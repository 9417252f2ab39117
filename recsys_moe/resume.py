"""Which checkpoint to continue from, and whether it belongs to this configuration and data."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch

from recsys_moe.config import Config
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.run_folder import data_hashes
from recsys_moe.schema import Schema

MAY_CHANGE = (
    *("trainer.max_epochs", "trainer.patience", "trainer.min_delta", "trainer.log_every_n_steps"),
    *("trainer.accelerator", "data.eval_batch_size", "data.max_memory_mb"),
)
"""Settings that a continued run may change; the learning rate and the rest are restored."""


def find_checkpoint(out: Path, resume: str) -> Path:
    """`auto` is the last checkpoint of `out`, anything else a path. Raises ConfigError."""
    path = out / "checkpoints" / "last.ckpt" if resume == "auto" else Path(resume)
    if not path.is_file():
        raise ConfigError(f"--resume {resume}: there is no checkpoint {path}")
    return path


def belongs_to(checkpoint: Path, out: Path) -> bool:
    """True when the checkpoint is one of the run folder `out`."""
    return (out / "checkpoints").resolve() in checkpoint.resolve().parents


def check_resume(checkpoint: Path, config: Config, data: Path, out: Path) -> None:
    """Raise ConfigError or DataError, naming the first difference, unless the run can go on."""
    saved = _hyper_parameters(checkpoint)
    before, now = _flat(saved["config"]), _flat(config.model_dump(mode="json"))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and key not in MAY_CHANGE:
            raise ConfigError(
                f"--resume: {key} was {before.get(key)} and must stay so, got {now.get(key)}; "
                f"only {', '.join(MAY_CHANGE)} may change"
            )
    if Schema.from_json(saved["schema_json"]) != Schema.load(data):
        raise DataError(f"--resume: {data} is not the data this run began with; start a new run")
    _check_files(out / "data.lock.json", data)


def _hyper_parameters(checkpoint: Path) -> dict[str, Any]:
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        found: dict[str, Any] = state["hyper_parameters"]
        return {"config": found["config"], "schema_json": found["schema_json"]}
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, LookupError, TypeError):
        raise ConfigError(f"--resume {checkpoint} cannot be read as a checkpoint of fit") from None


def _check_files(lock: Path, data: Path) -> None:
    if not lock.is_file():
        return
    recorded, found = json.loads(lock.read_text(encoding="utf-8"))["files"], data_hashes(data)
    for name in sorted(recorded.keys() | found.keys()):
        if recorded.get(name) != found.get(name):
            raise DataError(f"--resume: {data / name} has changed since the run began")


def _flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
