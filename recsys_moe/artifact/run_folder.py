"""The run folder: everything needed to trace and repeat a training run."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recsys_moe.artifact.epoch_metrics import EPOCH_METRICS
from recsys_moe.artifact.manifest import FILES, MANIFEST, OPTIONAL
from recsys_moe.artifact.routing_history import FILE
from recsys_moe.config.settings import Config
from recsys_moe.errors import ConfigError, DataError, RunError
from recsys_moe.files import (
    ANEW,
    Kind,
    check_kind,
    check_out,
    is_whole,
    read_object,
    read_record,
    sha256_file,
    write_json,
    write_text,
)
from recsys_moe.folders import PART, replace_folder, replacing_folder
from recsys_moe.schema import SCHEMA_FILE, SPLITS

PACKAGES = ("recsys-moe", "torch", "lightning", "torchmetrics", "numpy", "pandas", "pyarrow")
DATA_LOCK = "data.lock.json"
DAMAGED_LOCK = "train into another folder"
GO_ON = "choose another folder, continue it with --resume auto, or replace it with --overwrite"
CHECKPOINTS = "checkpoints"
LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
"""Files of the folder of checkpoints. `previous` is what was `last` before."""


def checkpoint_files(run: Path) -> list[Path]:
    """Those that are there, newest first; between two renames `last` is not."""
    files = (run / CHECKPOINTS / name for name in (LAST, PREVIOUS, BEST))
    return [file for file in files if file.is_file()]


RUN = Kind(
    "a run folder",
    lambda folder: (
        (folder / "config.yaml").is_file()
        and SCHEMA_FILE in read_object(folder / DATA_LOCK)["files"]
    ),
    (
        *("config.yaml", "command.txt", "env.json", DATA_LOCK, EPOCH_METRICS, FILE),
        *(f"{CHECKPOINTS}/{name}" for name in (LAST, PREVIOUS, BEST, "table")),
        *(f"evaluation/{split}.json" for split in SPLITS),
        *(f"model/{name}" for name in (*FILES, *OPTIONAL, MANIFEST)),
        *("events/events.out.tfevents.*", "events/hparams.yaml"),
        *("report/report.html", "report/*.json", "report/figures/*"),  # as the docs propose
        ".model-*",  # of a fit that was killed while it wrote the model
    ),
)


def place_of(out: Path, overwrite: bool, resume: str | None) -> Path:
    """Where the run for `out` is created: at `out`, or next to it until it replaces `out`.

    Every process of a run gets the same answer, also after the first one has begun.
    """
    part = out.parent / f"{out.name}{PART}"
    if resume == "auto":
        return part if _is_run(part) or (overwrite and not _has_checkpoints(out)) else out
    for place in (out, part) if resume else ():
        if (place / CHECKPOINTS).resolve() in Path(str(resume)).resolve().parents:
            return place
    return part if overwrite else out


def begin_run(
    place: Path,
    out: Path,
    config: Config,
    data: Path,
    *,
    resume: str | None,
    checkpoint: Path | None,
    start: dict[str, str] | None = None,
) -> None:
    """Make `place`, of `place_of`, a run folder; `checkpoint`: of another run, to begin with;
    `start`: the model that the run starts from, as `record_run` notes it.

    It appears whole, with its records, and holds no checkpoint but perhaps the best so far of the
    other run. A run that ended before its first checkpoint is taken up as it is.
    Raises ConfigError when something is there, or at `out`, and must stay.
    """
    if is_taken_up(place, resume):
        return record_run(place, config, data)
    model = Path(start["folder"]) if start else None
    inputs = {"--data": data, "--resume": checkpoint, "--init-from": model}
    check_begin(place, out, inputs, resume=resume)
    with replacing_folder(place) as folder:
        (folder / CHECKPOINTS).mkdir()
        if checkpoint is not None and checkpoint.with_name(BEST).is_file():
            shutil.copyfile(checkpoint.with_name(BEST), folder / CHECKPOINTS / BEST)
        record_run(folder, config, data, start)


def is_taken_up(place: Path, resume: str | None) -> bool:
    """Is there a run that ended before its first checkpoint, to be begun again?"""
    return resume == "auto" and _is_run(place) and not _has_results(place)


def check_begin(
    place: Path,
    out: Path,
    inputs: Mapping[str, Path | None],
    *,
    resume: str | None,
    may_go_on: bool = True,
) -> None:
    """Raise ConfigError unless `begin_run` may make a run folder at `place` that is to be `out`.

    `may_go_on`: whether --resume auto would help where a run is there.
    """
    if is_taken_up(place, resume):
        return
    part = out.parent / f"{out.name}{PART}"
    if place == out and _is_run(part):
        raise ConfigError(
            f"--out {out}: {part} is an unfinished run that would replace it; continue it with "
            "--resume auto, or restart with --overwrite"
        )
    is_open = resume != "auto" and may_go_on and _has_checkpoints(out)
    check_out(out, RUN, place != out, inputs, remedy=GO_ON if is_open else ANEW)
    check_out(place, RUN, place != out, inputs)


def remove_run(place: Path) -> None:
    """Delete a run folder, unless something else lies in it."""
    with suppress(ConfigError, OSError):  # report the error of the run
        check_out(place, RUN, True)
        shutil.rmtree(place)


def end_run(place: Path, out: Path, data: Path) -> None:
    """Let a run that was created next to `out` replace it. Raises RunError if it may not.

    Checks `out` again, hours after the start.
    """
    if place == out:
        return
    try:
        check_out(out, RUN, True, {"--data": data})
    except ConfigError as error:
        raise RunError(f"{error}; the new run is complete in {place}") from None
    replace_folder(place, out)


def _is_run(folder: Path) -> bool:
    return is_whole(folder, RUN)


def _has_results(run: Path) -> bool:
    return _has_checkpoints(run) or (run / "model").exists()


def _has_checkpoints(run: Path) -> bool:
    return any((run / CHECKPOINTS).glob("*.ckpt"))


def record_run(out: Path, config: Config, data: Path, start: dict[str, str] | None = None) -> None:
    """Write config.yaml, env.json, data.lock.json, and a line of command.txt per start.

    `start`: folder and hash of the model that the run starts from; as noted before where it is
    continued.
    """
    write_text(out / "config.yaml", config.to_yaml())
    commands = out / "command.txt"
    before = commands.read_text(encoding="utf-8") if commands.is_file() else ""
    write_text(commands, before + " ".join(["recsys-moe", *sys.argv[1:]]) + "\n")
    write_json(out / "env.json", environment())
    lock: dict[str, Any] = {"folder": str(data.resolve()), "files": data_hashes(data)}
    if begun := start or started_from(out):
        lock["from"] = begun
    write_json(out / DATA_LOCK, lock)


def started_from(run: Path) -> dict[str, str] | None:
    """The model that a run started from; None where it began untrained."""
    return _locked(run, "from")


def locked_hashes(run: Path) -> dict[str, str]:
    """The `data_hashes` that a run recorded; empty where there is no such record."""
    return _locked(run, "files") or {}


def _locked(run: Path, key: str) -> dict[str, str] | None:
    lock = run / DATA_LOCK
    found = read_record(lock, DAMAGED_LOCK).get(key) if lock.is_file() else None
    if not isinstance(found, dict | None):
        raise DataError(f"{lock} is damaged: {key} must be an object; {DAMAGED_LOCK}")
    return found


def data_hashes(data: Path) -> dict[str, str]:
    """SHA-256 of every file of a prepared folder, by relative path."""
    files = [data / SCHEMA_FILE, *sorted(data.glob("*.parquet")), *sorted(data.glob("*/*.parquet"))]
    for file in files:
        check_kind(file)
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
