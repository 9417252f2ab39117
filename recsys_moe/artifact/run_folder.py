"""The run folder: what a training run leaves behind so that it can be traced and repeated."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recsys_moe.config.settings import Config
from recsys_moe.errors import ConfigError
from recsys_moe.files import sha256_file, write_json, write_text
from recsys_moe.schema import SCHEMA_FILE

PACKAGES = ("recsys-moe", "torch", "lightning", "torchmetrics", "numpy", "pandas", "pyarrow")
DATA_LOCK = "data.lock.json"
CHECKPOINTS = "checkpoints"
LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
"""Files of the folder of checkpoints. `previous` is what was `last` before."""


def create_run_folder(out: Path, overwrite: bool, *, resume: bool = False) -> None:
    """Make an empty folder. Raises ConfigError when something is there and must stay.

    `resume`: a run that ended before its first checkpoint is in nobody's way.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if resume and (out / CHECKPOINTS).is_dir() and not any((out / CHECKPOINTS).glob("*.ckpt")):
            return
        if not overwrite:
            raise ConfigError(
                f"--out {out} exists; choose another folder, continue it with --resume auto, "
                "or replace it with --overwrite"
            )
        if not (out / "config.yaml").is_file():
            raise ConfigError(f"--out {out} is not a run folder; --overwrite will not delete it")
        shutil.rmtree(out)
    (out / CHECKPOINTS).mkdir(parents=True)


def record_run(out: Path, config: Config, data: Path) -> None:
    """Write config.yaml, env.json, data.lock.json, and a line of command.txt per start."""
    write_text(out / "config.yaml", config.to_yaml())
    commands = out / "command.txt"
    before = commands.read_text(encoding="utf-8") if commands.is_file() else ""
    write_text(commands, before + " ".join(["recsys-moe", *sys.argv[1:]]) + "\n")
    write_json(out / "env.json", environment())
    write_json(out / DATA_LOCK, {"folder": str(data.resolve()), "files": data_hashes(data)})


def locked_hashes(run: Path) -> dict[str, str]:
    """The `data_hashes` that a run recorded; empty where there is no such record."""
    lock = run / DATA_LOCK
    return json.loads(lock.read_text(encoding="utf-8"))["files"] if lock.is_file() else {}


def data_hashes(data: Path) -> dict[str, str]:
    """SHA-256 of every file of a prepared folder, by relative path."""
    files = [data / SCHEMA_FILE, *sorted(data.glob("*.parquet")), *sorted(data.glob("*/*.parquet"))]
    return {file.relative_to(data).as_posix(): sha256_file(file) for file in files}


def changed_files(recorded: dict[str, str], present: dict[str, str]) -> list[str]:
    """Names whose `data_hashes` differ, or that only one side has."""
    return sorted(n for n in recorded.keys() | present.keys() if recorded.get(n) != present.get(n))


def environment() -> dict[str, Any]:
    """Versions and hardware, without names of users or machines."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
