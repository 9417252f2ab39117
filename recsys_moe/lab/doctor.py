"""What this machine and installation offer, in a report that may be pasted into a bug report.

Standard library only until a package is asked for: a broken torch is a finding and no traceback.
Every text that comes from outside (an error, a folder) passes `redacted`.
"""

from __future__ import annotations

import getpass
import importlib
import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import recsys_moe
from recsys_moe import machine
from recsys_moe.errors import UserError
from recsys_moe.machine import cores

NEEDED = {
    **{name: name for name in ("torch", "lightning", "torchmetrics", "numpy", "pandas", "pyarrow")},
    **{name: name for name in ("pydantic", "typer", "rich", "safetensors", "matplotlib", "jinja2")},
    "pyyaml": "yaml",
    "tensorboard": "tensorboard",
}
"""Packages the product cannot do without, and the module of each."""
EXTRAS = {
    "serve": ("fastapi", "uvicorn", "prometheus-client"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "tune": ("optuna",),
    "lab": ("scipy",),
    "report": ("umap-learn",),
    "cluster": ("dask", "distributed"),
    "ray": ("ray",),
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
LOW_DISK, LOW_MEMORY = 2 * machine.GIB, machine.GIB
FOLDERS = re.compile(r"[^\s'\"()=,;]*[\\/]")


@dataclass
class Report:
    """Facts by section, and what follows from them."""

    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """What works, but not well."""
    problems: list[str] = field(default_factory=list)
    """What the product needs and is broken."""
    invalid: list[str] = field(default_factory=list)
    """What is wrong with the data or the model that were to be looked at."""

    @property
    def exit_code(self) -> int:
        """1 for a broken installation, 3 for invalid data, else 0."""
        return 1 if self.problems else 3 if self.invalid else 0


def examine(data: Path | None = None, run: Path | None = None) -> Report:
    """Look at everything; with `data` at a prepared folder and with `run` at a run or model too."""
    report = Report()
    report.facts["versions"] = _versions(report)
    report.facts["system"] = machine.system()
    report.facts["threads"] = _threads(report)
    report.facts["resources"] = _resources(report)
    if not any(problem.startswith("torch ") for problem in report.problems):
        _ask_torch(report)
    report.facts["extras"] = {name: _extra(name) for name in EXTRAS}
    _compiler(report)
    for name, path, look in (("data", data, look_at_data), ("model", run, look_at_model)):
        if path is not None:
            with _noted(report.invalid, f"--{'run' if name == 'model' else name}", path):
                report.facts[name] = look(path)
    if data is not None and run is not None and not report.invalid:
        _compare_files(report, data, run)
    return report


def redacted(text: str, *given: Path) -> str:
    """`text` without folders (a path keeps its last name), the user's name and the machine's.

    `given`: paths that may stand in it and hold blanks and brackets, at which others end.
    """
    for folder in sorted({each for path in given for each in _folders(path)}, key=len)[::-1]:
        text = re.sub(rf"(?<![\w.\\/-]){re.escape(folder)}[\\/]+", "", text)
    text = FOLDERS.sub("", text.replace(str(Path.home()), "~"))
    with suppress(Exception):  # a user without a name has none to hide
        text = _without(text, getpass.getuser(), "<user>")
    return _without(text, platform.node(), "<host>")


def _folders(path: Path) -> Iterator[str]:
    """A path and its folder as messages spell them: as given, absolute, resolved, in quotes."""
    for spelled in (path, path.absolute(), path.resolve()):
        for folder in (spelled, spelled.parent):
            if folder.name:  # neither `.` nor the root
                yield from (str(folder), repr(str(folder))[1:-1])


def _last_name(path: Path) -> str:
    return redacted(path.resolve().name)


def _without(text: str, word: str, mark: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", mark, text) if word else text


@contextmanager
def _noted(lines: list[str], subject: str, *given: Path) -> Iterator[None]:
    """Turns an exception into a line of `lines` that begins with `subject`, `given` redacted."""
    try:
        yield
    except Exception as error:
        name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        lines.append(f"{subject} {name}{' '.join(redacted(str(error), *given).split())}")


def version_of(package: str) -> str | None:
    """Installed version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _versions(report: Report) -> dict[str, str | None]:
    for package, module in NEEDED.items():
        with _noted(report.problems, f"{package} cannot be imported:"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    found = {package: version_of(package) for package in NEEDED}
    own = {"recsys-moe": recsys_moe.__version__, "python": platform.python_version()}
    return {**own, **found}


def _threads(report: Report) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in THREADS:
        value = os.environ.get(name)
        is_number = value is not None and value.isdigit() and int(value) > 0
        found[name] = int(value) if value is not None and is_number else None
        if value is not None and not is_number:
            report.warnings.append(f"{name} must be a number >= 1 and is not; unset it")
        elif found[name] is not None and found[name] > cores():
            report.warnings.append(
                f"{name}={found[name]} is more than the {cores()} usable cores: threads wait "
                f"for each other; set {name}={cores()} or unset it"
            )
    return found


def _resources(report: Report) -> dict[str, Any]:
    memory, quota = machine.memory(), machine.core_quota()
    disk = shutil.disk_usage(Path.cwd()).free
    _warn_of_low(report, disk, memory["available"], quota)
    return {
        "memory": machine.gib(memory["total"]),
        "memory available": machine.gib(memory["available"]),
        "memory limit": machine.gib(machine.memory_limit()),
        "core limit": quota,
        "disk free": machine.gib(disk),
    }


def _warn_of_low(report: Report, disk: int, memory: int | None, quota: float | None) -> None:
    if disk < LOW_DISK:
        report.warnings.append(
            f"only {machine.gib(disk)} of disk are free here: runs need room for checkpoints; "
            "write --out to another disk"
        )
    if memory is not None and memory < LOW_MEMORY:
        report.warnings.append(
            f"only {machine.gib(memory)} of memory are free; end other programs, or read the data "
            "in pieces (docs/large_data.md)"
        )
    if quota is not None and quota < cores():
        report.warnings.append(
            f"this container may use {quota:g} of {cores()} cores; "
            f"set OMP_NUM_THREADS={max(1, int(quota))}"
        )


def _ask_torch(report: Report) -> None:
    """Threads, number formats and devices; what fails here is a warning: a CPU is enough."""
    import torch

    report.facts["threads"] |= {
        "torch": torch.get_num_threads(),
        "torch between operations": torch.get_num_interop_threads(),
    }
    parts: dict[str, Callable[[], Any]] = {
        "numbers": machine.number_formats,
        "devices": machine.accelerators,
    }
    for name, look in parts.items():
        with _noted(report.warnings, f"{name}:"), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            report.facts[name] = look()
        report.warnings += [f"{name}: {redacted(str(one.message).splitlines()[0])}" for one in said]
    if (
        sys.platform == "linux"
        and machine.NVIDIA_DRIVER.is_file()
        and not torch.cuda.is_available()
    ):
        report.warnings.append(
            f"an NVIDIA driver is here but torch {torch.__version__} uses no GPU; "
            "install a CUDA build of torch that fits the driver (pytorch.org)"
        )


def _extra(name: str) -> dict[str, Any]:
    missing = [package for package in EXTRAS[name] if version_of(package) is None]
    found = {package: version_of(package) for package in EXTRAS[name] if package not in missing}
    remedy = {"install": f'pip install "recsys-moe[{name}]"'} if missing else {}
    return {"present": found, "missing": missing, **remedy}


def _compiler(report: Report) -> None:
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++", "cl"]
    if not any(shutil.which(name) for name in names if name):
        report.warnings.append(
            "no C++ compiler: `export --format aoti` and torch.compile need one (g++ or clang++)"
        )


def look_at_data(folder: Path) -> dict[str, Any]:
    """Counts of a prepared folder, checked against its schema.json. Raises DataError."""
    import pyarrow.parquet as pq

    from recsys_moe.data.columns import StoredColumns
    from recsys_moe.schema import SPLITS, DataError, Schema

    schema = Schema.load(folder)
    rows = {}
    for split in SPLITS:
        columns = StoredColumns(folder, schema, split)
        columns.group(0)  # its columns and their ranges
        rows[split] = len(columns)
    for feature, file in ((schema.user, "users.parquet"), (schema.item, "items.parquet")):
        count = pq.read_metadata(folder / file).num_rows
        if count != feature.size:
            raise DataError(
                f"{file} must have {feature.size} rows, got {count}; prepare the data again"
            )
    return {
        "folder": _last_name(folder),
        "name": schema.name,
        "protocol": schema.protocol,
        "users": schema.user.size,
        "items": schema.item.size,
        "rows": rows,
        "tasks": {task.name: task.kind for task in schema.tasks},
    }


def look_at_model(path: Path) -> dict[str, Any]:
    """What a model or a run's model is; its files must have their hashes. Raises DataError."""
    from recsys_moe.artifact.model_folder import load_artifact

    artifact = load_artifact(path)
    router = artifact.config.model.router
    return {
        "folder": _last_name(path),
        "data": artifact.schema.name,
        "router": router.name,
        "experts": artifact.config.model.num_experts,
        "tasks": [task.name for task in artifact.schema.tasks],
        "parameters": sum(parameter.numel() for parameter in artifact.model.parameters()),
    }


def _compare_files(report: Report, data: Path, run: Path) -> None:
    """Are the data those that the run was trained on, by the hashes that it has kept?"""
    from recsys_moe.artifact.run_folder import DATA_LOCK, changed_files, data_hashes, locked_hashes

    lock = _lock_of(run)
    if lock is None:
        report.facts["data"]["files"] = "not compared: the model lies in no run folder"
        return
    with _noted(report.invalid, f"{DATA_LOCK}:", data, lock):
        changed = changed_files(locked_hashes(lock.parent), data_hashes(data))
        report.facts["data"]["files"] = "those of the run" if not changed else "not those of it"
        if changed:
            report.invalid.append(
                f"--data is not what --run was trained on: {', '.join(map(redacted, changed))} "
                "differ; evaluate on the data of the run"
            )


def _lock_of(path: Path) -> Path | None:
    """What a run, or the run of a model, has kept of its data; None where a model lies alone."""
    from recsys_moe.artifact.model_folder import find_artifact
    from recsys_moe.artifact.run_folder import DATA_LOCK

    run = find_artifact(path).resolve().parent
    found = (folder / DATA_LOCK for folder in (path, run))
    return next((lock for lock in found if lock.is_file()), None)
