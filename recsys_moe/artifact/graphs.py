"""The model as a graph for other runtimes: writes, loads, verifies and times it."""

from __future__ import annotations

import copy
import inspect
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from recsys_moe.artifact.graph_formats import FORMATS
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.artifact.parity import EVENT_INPUTS, Runner, as_request, check_parity, parity_rows
from recsys_moe.data.item_past import Known
from recsys_moe.errors import RunError
from recsys_moe.files import sha256_file
from recsys_moe.kinds import by_task, kind_of
from recsys_moe.model.request import Request

LATENCY_ROWS = (1, 1000)
LATENCY_RUNS = 20
LATENCY_SECONDS = 5.0
"""Of one number of rows; slow models are called fewer times."""


class Graph(nn.Module):
    """What is exported: (B,) int64 `user` and `item` indices -> the outputs named in `outputs`.

    `context`, for models with context features: (B, C) float32 as in `Request.context`. For models
    that read events: `event_item` (B, L) int64 indices, `event_value` (B, L) float32, standardised
    ratings or NaN, `event_time` (B, L) float64 seconds: the last events of each row's user, by
    time, from the left; `event_count` (B,) int64: how many there are. What is behind them is not
    read. For models that read the time of a row: `time` (B,) float64, seconds since 1970, or NaN;
    of age and popularity of items it knows what the model folder does.

    `predictions` (B, T) float32, one column per task, or class, in the order of the schema.
    `calibrated`, the same with the calibrated probability where there is one; only for models that
    have a calibration.
    """

    past_first: Tensor
    past_popularity: Tensor
    past_end: Tensor

    def __init__(self, artifact: Artifact) -> None:
        super().__init__()
        self.model = copy.deepcopy(artifact.model).requires_grad_(False)
        self.tasks = artifact.schema.tasks
        self.calibration = artifact.calibration
        for name in () if artifact.past is None else ("first", "popularity", "end"):
            self.register_buffer(f"past_{name}", getattr(artifact.past, name))
        self.reads_items = artifact.past is not None
        self.outputs = ("predictions", "calibrated")[: 2 if self.calibration else 1]

    def forward(
        self, user: Tensor, item: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        return self.answer(user, item, *(() if context is None else (context,)))

    def answer(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of the inputs of `as_request`."""
        items = None
        if self.reads_items:
            items = Known(self.past_first, self.past_popularity, self.past_end)
        return self.outputs_of(as_request(inputs, items))

    def outputs_of(self, request: Request) -> tuple[Tensor, ...]:
        """The outputs for each row."""
        logits_BT = self.model(request).logits_BT
        kinds = [kind_of(task) for task in self.tasks]
        parts = [*zip(self.tasks, kinds, by_task(logits_BT, kinds), strict=True)]
        raw = {n: p_B for task, k, z in parts for n, p_B in k.predictions(task.name, z).items()}
        predictions_BT = torch.stack([*raw.values()], dim=1)
        if not self.calibration:
            return (predictions_BT,)
        better = {
            task.name: self.calibration[task.name].apply(z)
            for task, _, z in parts
            if task.name in self.calibration
        }
        return predictions_BT, torch.stack([*(raw | better).values()], dim=1)


def graph_of(artifact: Artifact) -> Graph:
    """The graph that has the inputs of the model."""
    model = artifact.config.model
    if not model.reads_past:
        return Graph(artifact).eval()
    names = ["self", "user", "item", *["context"] * (model.context != "none")]
    names += [*EVENT_INPUTS] * model.reads_events + ["time"] * bool(model.chosen_times)

    def forward(self: Graph, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.answer(*inputs)

    each = [inspect.Parameter(one, inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in names]
    vars(forward)["__signature__"] = inspect.Signature(each)  # the names of the inputs
    return type("PastGraph", (Graph,), {"forward": forward})(artifact).eval()


def export_graph(artifact: Artifact) -> ExportedProgram:
    """The model as one graph with a free number of rows."""
    graph = graph_of(artifact)
    graph.model.prepare_export()
    return traced(graph, tuple(one[:3] for one in parity_rows(artifact)))


def traced(graph: nn.Module, inputs: tuple[Any, ...]) -> ExportedProgram:
    """A graph with a free number of rows, the first axis of all inputs.

    Raises RunError where the graph fixes their number.
    """
    rows = {0: Dim("rows", min=0)}
    bound = inspect.signature(graph.forward).bind(*inputs).arguments
    shapes = {
        name: (rows,) * len(one) if isinstance(one, tuple) else rows for name, one in bound.items()
    }
    try:
        with quiet():
            return torch.export.export(graph, inputs, dynamic_shapes=shapes)
    except torch._dynamo.exc.UserError as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"a graph must take any number of rows, got {type(error).__name__}: {reason}; in a "
            "router or model of your own, write x.shape[0] rather than len(x)"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' remarks on their own work."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def write_graphs(
    artifact: Artifact, folder: Path, formats: Sequence[str], progress: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and report of `model` (PyTorch itself, for its latency) and of each format.

    Raises RunError where a graph differs from the model.
    """
    if not formats:
        return
    program, reference = export_graph(artifact), graph_of(artifact)
    rows = parity_rows(artifact)
    yield "model", {"latency_ms": latency(reference, *rows)}
    for name in dict.fromkeys(formats):
        progress(name)
        path = folder / FORMATS[name].file
        with quiet():
            FORMATS[name].write(program, path, reference.outputs)
            runner = FORMATS[name].load(path)
        parity = check_parity(name, runner, reference, artifact)
        yield name, {**files_of([path]), "latency_ms": latency(runner, *rows), "parity": parity}


def files_of(paths: Sequence[Path]) -> dict[str, Any]:
    """Checksums and size. ONNX above 2 GB has a second file."""
    files = [file for path in paths for file in sorted(path.parent.glob(f"{path.name}*"))]
    checksums = {file.name: sha256_file(file) for file in files}
    return {"files": checksums, "bytes": sum(file.stat().st_size for file in files)}


@torch.inference_mode()
def latency(runner: Runner, *inputs: Tensor) -> dict[str, float]:
    """Median milliseconds of a call by number of rows, after three calls to warm up.

    Of LATENCY_RUNS calls, or of those within LATENCY_SECONDS, but at least one.
    """
    medians = {}
    for rows in LATENCY_ROWS:
        seconds: list[float] = []
        while len(seconds) < 3 + LATENCY_RUNS:
            start = time.perf_counter()
            runner(*(one[:rows] for one in inputs))
            seconds.append(time.perf_counter() - start)
            if len(seconds) > 3 and sum(seconds) >= LATENCY_SECONDS:
                break
        medians[str(rows)] = round(1000 * statistics.median(seconds[3:]), 3)
    return medians
