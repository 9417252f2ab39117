"""export: a lean copy of the model folder, and graphs for other runtimes that prove themselves.

Every graph is loaded again in the runtime it is for and compared with the model before the folder
appears; where it differs, nothing is left behind.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from recsys_moe.artifact.model_folder import (
    FORMAT_VERSION,
    MANIFEST,
    Artifact,
    find_artifact,
    load_artifact,
    save_artifact,
)
from recsys_moe.artifact.parity import Runner, check_parity, parity_rows
from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.files import replacing_folder, sha256_file, write_json
from recsys_moe.model.tasks import KINDS

REPORT = "export.json"
INPUTS = ("user", "item")
LATENCY_ROWS = (1, 1000)
LATENCY_RUNS = 20


class Graph(nn.Module):
    """What is exported: (B,) int64 `user` and `item` indices -> the outputs named in `outputs`.

    `predictions` (B, T) float32, one column per task in the order of the schema: a probability for
    binary tasks, a value for regression. `calibrated`, the same with the calibrated probability
    where there is one; only for models that have a calibration.
    """

    def __init__(self, artifact: Artifact) -> None:
        super().__init__()
        self.model = copy.deepcopy(artifact.model)
        self.tasks = artifact.schema.tasks
        self.calibration = artifact.calibration
        self.outputs = ("predictions", "calibrated")[: 2 if self.calibration else 1]

    def forward(self, user: Tensor, item: Tensor) -> tuple[Tensor, ...]:
        logits_BT = self.model(user, item).logits_BT
        raw = [KINDS[task.kind].link(logits_BT[:, t]) for t, task in enumerate(self.tasks)]
        predictions_BT = torch.stack(raw, dim=1)
        if not self.calibration:
            return (predictions_BT,)
        better = {
            t: self.calibration[task.name].apply(logits_BT[:, t])
            for t, task in enumerate(self.tasks)
            if task.name in self.calibration
        }
        calibrated = [better.get(t, column_B) for t, column_B in enumerate(raw)]
        return predictions_BT, torch.stack(calibrated, dim=1)


@dataclass(frozen=True)
class Format:
    """How a graph is written to a file and run from it again."""

    file: str
    packages: tuple[str, ...]
    write: Callable[[ExportedProgram, Path, tuple[str, ...]], None]
    load: Callable[[Path], Runner]


def _write_pt2(program: ExportedProgram, path: Path, outputs: tuple[str, ...]) -> None:
    torch.export.save(program, path)


def _load_pt2(path: Path) -> Runner:
    module = torch.export.load(path).module()
    return lambda user, item: tuple(module(user, item))


def _write_onnx(program: ExportedProgram, path: Path, outputs: tuple[str, ...]) -> None:
    exported = torch.onnx.export(
        program,
        input_names=INPUTS,
        output_names=outputs,
        dynamic_shapes={name: {0: "rows"} for name in INPUTS},  # the name in the file
        dynamo=True,
        verbose=False,
    )
    assert exported is not None
    exported.save(path)


def _load_onnx(path: Path) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(user: Tensor, item: Tensor) -> tuple[Tensor, ...]:
        found = session.run(None, {"user": user.numpy(), "item": item.numpy()})
        return tuple(torch.from_numpy(out) for out in found)

    return run


def _write_aoti(program: ExportedProgram, path: Path, outputs: tuple[str, ...]) -> None:
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def _load_aoti(path: Path) -> Runner:
    package = torch._inductor.aoti_load_package(str(path))
    return lambda user, item: tuple(package(user, item))


FORMATS = {
    "pt2": Format("model.pt2", (), _write_pt2, _load_pt2),
    "onnx": Format("model.onnx", ("onnx", "onnxscript", "onnxruntime"), _write_onnx, _load_onnx),
    "aoti": Format("model.aoti.pt2", (), _write_aoti, _load_aoti),
}


def export(
    path: Path,
    out: Path,
    formats: Sequence[str] = (),
    *,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Write a copy of the model at `path`, plus a graph per format, to the folder `out`.

    Returns the report, which also lies in `out`/export.json: size, latency and parity per format.
    The folder appears complete or not at all. Raises ConfigError for what cannot be asked for,
    DataError for a model that cannot be read, RunError where a graph differs from the model.
    """
    _check_formats(formats)
    source, out = find_artifact(path), Path(out)
    _check_out(out, source, overwrite)
    artifact = load_artifact(source)
    if formats:
        _check_router(artifact)
    with replacing_folder(out) as folder:
        card = {**artifact.card, **_evaluations(path)}
        weights = artifact.model.state_dict()
        save_artifact(
            folder, weights, artifact.config, source, artifact.seen, card, artifact.calibration
        )
        report = _describe(artifact, sum(p.stat().st_size for p in folder.iterdir()))
        report["formats"] = dict(_graphs(artifact, folder, formats, progress))
        write_json(folder / REPORT, report)
    return report


def _check_formats(formats: Sequence[str]) -> None:
    for name in formats:
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            hint = suggestion(name, list(FORMATS))
            raise ConfigError(f"--format must be of {known}, got {name!r}; {hint}")
        for package in FORMATS[name].packages:
            try:
                importlib.import_module(package)
            except ImportError:
                raise ConfigError(
                    f"--format {name} needs {package}, which is not installed; "
                    'pip install "recsys-moe[export]"'
                ) from None
    compiler = os.environ.get("CXX", "g++")
    if "aoti" in formats and shutil.which(compiler) is None:
        raise ConfigError(
            f"--format aoti needs a C++ compiler, and {compiler} is not on PATH; "
            "install g++ or leave aoti out"
        )


def _check_out(out: Path, source: Path, overwrite: bool) -> None:
    if out.resolve() in (source.resolve(), *source.resolve().parents):
        raise ConfigError(f"--out {out} holds the model itself; choose another folder")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise ConfigError(f"--out {out} exists; choose another folder or pass --overwrite")
    if not (out / MANIFEST).is_file():
        raise ConfigError(f"--out {out} is not a model folder; --overwrite will not delete it")


def _check_router(artifact: Artifact) -> None:
    """A graph must give a row the same prediction in every batch and every time."""
    settings, router = artifact.config.model.router, artifact.model.routers[0]
    if router.batch_dependent:
        raise ConfigError(
            f"--format needs a router that decides row by row, got {settings.name}, whose choice "
            "depends on the rest of the batch; leave --format out or train another router"
        )
    if getattr(settings, "inference", None) == "sampled":
        raise ConfigError(
            "--format needs deterministic inference, got model.router.inference=sampled; "
            "train with model.router.inference=sparse or leave --format out"
        )


def _evaluations(path: Path) -> dict[str, Any]:
    """The figures that `fit` and `evaluate` left in a run folder, by split."""
    files = sorted((Path(path) / "evaluation").glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def _describe(artifact: Artifact, size: int) -> dict[str, Any]:
    user, item = artifact.schema.user.size, artifact.schema.item.size
    return {
        "format_version": FORMAT_VERSION,
        "bytes": size,
        "torch": torch.__version__,
        "inputs": {
            "user": {"dtype": "int64", "shape": ["rows"], "range": [0, user], "unseen": user},
            "item": {"dtype": "int64", "shape": ["rows"], "range": [0, item], "unseen": item},
        },
        "outputs": list(Graph(artifact).outputs),
        "tasks": [{"name": task.name, "kind": task.kind} for task in artifact.schema.tasks],
    }


def export_graph(artifact: Artifact) -> ExportedProgram:
    """The model as one graph with a free number of rows, at least 1."""
    graph = Graph(artifact).eval()
    graph.model.moe.dispatch = "dense"  # static shapes; the sparse path loops over experts
    user, item = parity_rows(artifact)
    rows = Dim("rows", min=1)
    shapes = {name: {0: rows} for name in INPUTS}
    with _quiet():
        return torch.export.export(graph, (user[:3], item[:3]), dynamic_shapes=shapes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' remarks on their own work."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _graphs(
    artifact: Artifact, folder: Path, formats: Sequence[str], progress: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and report of `model` (PyTorch itself, for its latency) and of each format."""
    if not formats:
        return
    program, reference = export_graph(artifact), Graph(artifact).eval()
    rows = parity_rows(artifact)
    yield "model", {"latency_ms": _latency(reference, *rows)}
    for name in dict.fromkeys(formats):
        progress(name)
        path = folder / FORMATS[name].file
        with _quiet():
            FORMATS[name].write(program, path, reference.outputs)
            runner = FORMATS[name].load(path)
        parity = check_parity(name, runner, reference, artifact)
        files = sorted(folder.glob(f"{path.name}*"))  # ONNX above 2 GB has a second one
        yield (
            name,
            {
                "files": {file.name: sha256_file(file) for file in files},
                "bytes": sum(file.stat().st_size for file in files),
                "latency_ms": _latency(runner, *rows),
                "parity": parity.to_json(),
            },
        )


@torch.inference_mode()
def _latency(runner: Runner, user: Tensor, item: Tensor) -> dict[str, float]:
    """Median milliseconds of a call by number of rows, after three calls to warm up."""
    found = {}
    for rows in LATENCY_ROWS:
        seconds = []
        for _ in range(3 + LATENCY_RUNS):
            start = time.perf_counter()
            runner(user[:rows], item[:rows])
            seconds.append(time.perf_counter() - start)
        found[str(rows)] = round(1000 * statistics.median(seconds[3:]), 3)
    return found
