"""export: a copy of the model folder, and verified graphs for other runtimes.

Every graph is loaded again in the runtime it is for and compared with the model before the folder
appears; where it differs, nothing is left behind.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from recsys_moe.artifact.graph_formats import FORMATS
from recsys_moe.artifact.graphs import Graph, write_graphs
from recsys_moe.artifact.manifest import (
    FILES,
    FORMAT,
    MANIFEST,
    OPTIONAL,
    find_artifact,
    version_of,
)
from recsys_moe.artifact.model_folder import Artifact, load_artifact, save_artifact
from recsys_moe.artifact.step_graphs import described, write_step_graphs
from recsys_moe.config.encoders import chosen_context
from recsys_moe.data.histories import rating_scale
from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.files import Kind, check_out, read_object, read_record, write_json
from recsys_moe.folders import replacing_folder

REPORT = "export.json"
GRAPHS = (
    entry.file.replace("model", stem)
    for entry in FORMATS.values()
    for stem in ("model", "step", "scorer")
)
MODEL = Kind(
    "a model folder",
    lambda folder: read_object(folder / MANIFEST)["format"] == FORMAT,
    (*FILES, *OPTIONAL, MANIFEST, REPORT, *GRAPHS),
)


def export(
    path: Path,
    out: Path,
    formats: Sequence[str] = (),
    *,
    step: bool = False,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Write a copy of the model at `path`, plus a graph per format, to the folder `out`.

    `step`: instead two graphs, of one event and of scores after it, for a model that reads events.
    Returns the report, which also lies in `out`/export.json: size, latency and parity per format.
    The folder appears complete or not at all. Raises ConfigError for what cannot be asked for,
    DataError for a model that cannot be read, RunError where a graph differs from the model.
    """
    _check_formats(formats)
    if step:
        _check_step_formats(formats)
    source, out = find_artifact(path), Path(out)
    check_out(out, MODEL, overwrite, {"RUN|MODEL": source})
    artifact = load_artifact(source)
    if formats:
        _check_router(artifact)
    if step:
        _check_step(artifact)
    with replacing_folder(out) as folder:
        _copy(artifact, source, folder, _evaluations(path))
        report = _describe(artifact, sum(p.stat().st_size for p in folder.iterdir()))
        write = write_step_graphs if step else write_graphs
        report["formats"] = dict(write(artifact, folder, formats, progress))
        if step:
            report |= described(artifact, report.pop("inputs"))
        write_json(folder / REPORT, report)
    return report


def _copy(artifact: Artifact, source: Path, folder: Path, evaluations: dict[str, Any]) -> None:
    past = {} if artifact.past is None else artifact.past._asdict()
    save_artifact(
        folder,
        artifact.model.state_dict(),
        artifact.config,
        source,
        seen=artifact.seen,
        card={**artifact.card, **evaluations},
        calibrations=artifact.calibration,
        encoders=artifact.encoders,
        history=artifact.history,
        events=artifact.events,
        items={name: one for name, one in past.items() if one is not None},
    )


def _check_formats(formats: Sequence[str]) -> None:
    for name in formats:
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            hint = suggestion(name, list(FORMATS))
            raise ConfigError(f"--format must be one of {known}, got {name!r}; {hint}")
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
            "install g++, or omit aoti"
        )


def _check_step_formats(formats: Sequence[str]) -> None:
    if not formats or "aoti" in formats:
        got = ",".join(formats) or "none"
        raise ConfigError(f"--step needs --format pt2, onnx or both, got {got}; change --format")


def _check_step(artifact: Artifact) -> None:
    """A step says what an event does to a user's state."""
    if times := artifact.config.model.chosen_times:
        raise ConfigError(
            "--step needs a model without time features, got model.time_features="
            f"{','.join(times)}; omit --step, or train without"
        )
    if artifact.config.model.sequence == "none":
        raise ConfigError(
            "--step needs a model that reads events, got model.sequence=none; omit --step, or "
            "train with model.sequence=lru"
        )


def _check_router(artifact: Artifact) -> None:
    """A graph must give a row the same prediction in every batch and every time."""
    if not artifact.model.routers:
        return
    router = artifact.model.routers[0]
    settings = router.config
    if router.batch_dependent:
        raise ConfigError(
            f"--format needs a router that treats rows independently, got {settings.name}, which "
            "depends on the whole batch; omit --format, or train with another router"
        )
    if getattr(settings, "inference", None) == "sampled":
        raise ConfigError(
            "--format needs deterministic inference, got model.router.inference=sampled; "
            "train with model.router.inference=sparse, or omit --format"
        )


def _evaluations(path: Path) -> dict[str, Any]:
    """The figures that `fit` and `evaluate` left in a run folder, by split."""
    files = sorted((Path(path) / "evaluation").glob("*.json"))
    return {file.stem: read_record(file, "run `recsys-moe evaluate` again") for file in files}


def _describe(artifact: Artifact, size: int) -> dict[str, Any]:
    user, item = artifact.schema.user.size, artifact.schema.item.size
    return {
        "format_version": version_of(artifact.config, bool(artifact.encoders)),
        "bytes": size,
        "torch": torch.__version__,
        "inputs": {
            "user": {"dtype": "int64", "shape": ["rows"], "range": [0, user], "unseen": user},
            "item": {"dtype": "int64", "shape": ["rows"], "range": [0, item], "unseen": item},
            **_context_input(artifact),
            **_event_inputs(artifact),
            **_time_input(artifact),
        },
        "outputs": list(Graph(artifact).outputs),
        "tasks": [{"name": task.name, "kind": task.kind} for task in artifact.schema.tasks],
    }


def _event_inputs(artifact: Artifact) -> dict[str, Any]:
    """The last events of each row's user, from the left; {} for a model that reads none."""
    settings, size = artifact.config.model, artifact.schema.item.size
    if not settings.reads_events:
        return {}
    shape, (mean, std) = ["rows", settings.sequence_length], rating_scale(artifact.schema)
    value = {"dtype": "float32", "shape": shape, "missing": "NaN", "mean": mean, "std": std}
    return {
        "event_item": {"dtype": "int64", "shape": shape, "range": [0, size], "unseen": size},
        "event_value": value,
        "event_time": {"dtype": "float64", "shape": shape, "unit": "seconds, ascending"},
        "event_count": {"dtype": "int64", "shape": ["rows"], "range": [0, shape[1]]},
    }


def _time_input(artifact: Artifact) -> dict[str, Any]:
    """{} for a model that does not read when rows ask."""
    if not artifact.config.model.chosen_times:
        return {}
    unit = {"unit": "seconds since 1970 UTC", "missing": "NaN"}
    return {"time": {"dtype": "float64", "shape": ["rows"], **unit}}


def _context_input(artifact: Artifact) -> dict[str, Any]:
    """A column per context feature, NaN where missing; {} for a model without."""
    context = chosen_context(artifact.config, artifact.schema)
    if not context:
        return {}
    columns = [
        {"name": one.name, "kind": one.kind}
        | (
            {"mean": one.mean, "std": one.std}
            if one.kind == "numeric"
            else {"range": [0, one.size], "unseen": one.size}
        )
        for one in context
    ]
    shape = ["rows", len(columns)]
    return {"context": {"dtype": "float32", "shape": shape, "missing": "NaN", "columns": columns}}
