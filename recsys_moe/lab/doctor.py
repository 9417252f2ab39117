"""Checks the installation, the machine, data and a model; the report fits into a bug report.

Packages are imported inside the checks: a broken torch is a finding, not a traceback. Of foreign
exceptions and warnings only the type is repeated, since messages may have paths and names. Our own
messages name files relative to the given folder.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import recsys_moe
from recsys_moe import machine
from recsys_moe.errors import UserError
from recsys_moe.lab.doctor_inputs import changed_data, inside, look_at_data, look_at_model
from recsys_moe.machine import cores

NEEDED = {
    **{name: name for name in ("torch", "lightning", "torchmetrics", "numpy", "pandas", "pyarrow")},
    **{name: name for name in ("pydantic", "typer", "rich", "safetensors", "matplotlib", "jinja2")},
    "scipy": "scipy",
    "pyyaml": "yaml",
    "tensorboard": "tensorboard",
}
"""Required packages, and the module of each."""
EXTRAS = {
    "serve": ("fastapi", "uvicorn", "prometheus-client"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "tune": ("optuna",),
    "ann": ("faiss-cpu",),
    "postgres": ("psycopg",),
    "cluster": ("dask", "distributed"),
    "ray": ("ray",),
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
COMPILERS = ("c++", "g++", "clang++", "cl")
LOW_DISK, LOW_MEMORY = 2 * machine.GIB, machine.GIB


@dataclass
class Report:
    """Facts by section, and findings."""

    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """What may be slow or limited."""
    problems: list[str] = field(default_factory=list)
    """Required parts that are broken."""
    invalid: list[str] = field(default_factory=list)
    """Errors in the given data or model."""

    @property
    def exit_code(self) -> int:
        """1 for a broken installation, 3 for invalid data, else 0."""
        return 1 if self.problems else 3 if self.invalid else 0


def examine(data: Path | None = None, run: Path | None = None) -> Report:
    """Run all checks; also of a prepared folder `data` and of a run or model `run`."""
    report = Report()
    for section, look in CHECKS.items():
        report.facts[section] = look(report)
    if not any(problem.startswith("torch ") for problem in report.problems):
        _ask_torch(report)
    for option, path, name, examined in (
        ("--data", data, "data", look_at_data),
        ("--run", run, "model", look_at_model),
    ):
        if path is not None:
            with _noted(report.invalid, option), inside(path):
                report.facts[name] = examined(Path())
    if data is not None and run is not None and not report.invalid:
        with _noted(report.invalid, "--run"):
            _compare(report, data, run)
    return report


def _compare(report: Report, data: Path, run: Path) -> None:
    changed = changed_data(data, run)
    if changed:
        report.invalid.append(
            f"--data is not the training data of --run: {', '.join(changed)} "
            "differ; use the data of the run"
        )
    same = "not those of it" if changed else "those of the run"
    unknown = "not compared: the model is not in a run folder"
    report.facts["data"]["files"] = unknown if changed is None else same


@contextmanager
def _noted(lines: list[str], subject: str, remedy: str = "") -> Iterator[None]:
    """Append an exception to `lines`, after `subject`."""
    try:
        yield
    except Exception as error:
        words = str(error) if isinstance(error, UserError) else type(error).__name__
        lines.append(f"{subject} {' '.join(words.split())}{remedy}")


def version_of(package: str) -> str | None:
    """Installed version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _versions(report: Report) -> dict[str, str | None]:
    for package, module in NEEDED.items():
        subject, remedy = f"{package} cannot be imported:", f"; `import {module}` shows why"
        with _noted(report.problems, subject, remedy), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    own = {"recsys-moe": recsys_moe.__version__, "python": platform.python_version()}
    return {**own, **{package: version_of(package) for package in NEEDED}}


def _threads(report: Report) -> dict[str, Any]:
    threads: dict[str, Any] = {}
    for name in THREADS:
        value = os.environ.get(name, "")
        threads[name] = int(value) if value.isdigit() and int(value) > 0 else None
        if name in os.environ and threads[name] is None:
            report.warnings.append(f"{name} must be a number >= 1; unset it")
        elif (threads[name] or 0) > cores():
            report.warnings.append(
                f"{name}={threads[name]} is more than the {cores()} usable cores: threads wait "
                f"for each other; set {name}={cores()} or unset it"
            )
    return threads


def _resources(report: Report) -> dict[str, Any]:
    memory, quota = machine.memory(), machine.core_quota()
    disk, free = shutil.disk_usage(Path.cwd()).free, memory["available"]
    if disk < LOW_DISK:
        report.warnings.append(
            f"only {machine.gib(disk)} of disk is free; runs need space for checkpoints; "
            "write --out to another disk"
        )
    if free is not None and free < LOW_MEMORY:
        report.warnings.append(
            f"only {machine.gib(free)} of memory is free; close other programs, or stream the data "
            "(docs/how-to/large-data.md)"
        )
    if quota is not None and quota < cores():
        report.warnings.append(
            f"this container may use {quota:g} of {cores()} cores; "
            f"set OMP_NUM_THREADS={max(1, int(quota))}"
        )
    return {
        "memory": machine.gib(memory["total"]),
        "memory available": machine.gib(free),
        "memory limit": machine.gib(machine.memory_limit()),
        "core limit": quota,
        "disk free": machine.gib(disk),
    }


def _ask_torch(report: Report) -> None:
    """Threads, number formats and devices; failures are warnings, since a CPU is enough."""
    import torch

    report.facts["threads"] |= {
        "torch": torch.get_num_threads(),
        "torch between operations": torch.get_num_interop_threads(),
    }
    for name, look in (("numbers", machine.number_formats), ("devices", machine.accelerators)):
        remedy = "; `python -m torch.utils.collect_env` shows more"
        with (
            _noted(report.warnings, f"{name}:", remedy),
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            report.facts[name] = look()
        kinds = dict.fromkeys(warning.category.__name__ for warning in said)
        report.warnings += [f"{name}: {kind}{remedy}" for kind in kinds]
    if (
        sys.platform == "linux"
        and machine.NVIDIA_DRIVER.is_file()
        and not torch.cuda.is_available()
    ):
        report.warnings.append(
            f"an NVIDIA driver is installed but torch {torch.__version__} cannot use a GPU; "
            "install a CUDA build of torch that fits the driver (pytorch.org)"
        )


def _extras(report: Report) -> dict[str, Any]:
    if not any(map(shutil.which, filter(None, [os.environ.get("CXX"), *COMPILERS]))):
        report.warnings.append(
            "no C++ compiler: `export --format aoti` and torch.compile need one (g++ or clang++)"
        )
    return {name: _extra(name) for name in EXTRAS}


def _extra(name: str) -> dict[str, Any]:
    versions = {package: version_of(package) for package in EXTRAS[name]}
    missing = [package for package, version in versions.items() if version is None]
    present = {package: version for package, version in versions.items() if version}
    remedy = {"install": f'pip install "recsys-moe[{name}]"'} if missing else {}
    return {"present": present, "missing": missing, **remedy}


CHECKS: dict[str, Callable[[Report], dict[str, Any]]] = {
    "versions": _versions,
    "system": lambda report: machine.system(),
    "threads": _threads,
    "resources": _resources,
    "extras": _extras,
}
"""By section, a check that returns its facts and adds findings to the report."""
