"""File formats of a graph: PyTorch's pt2, ONNX and AOTInductor; how each is written and run."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from recsys_moe.artifact.parity import Runner


@dataclass(frozen=True)
class Format:
    """How a graph is written to a file and run from it again."""

    file: str
    packages: tuple[str, ...]
    write: Callable[[ExportedProgram, Path, tuple[str, ...]], Any]
    load: Callable[[Path], Runner]


def _write_pt2(program: ExportedProgram, path: Path, outputs: tuple[str, ...]) -> None:
    """Through memory: torch's own writer aborts the process where the disk fails under it."""
    archive = io.BytesIO()
    torch.export.save(program, archive)
    path.write_bytes(archive.getbuffer())


def _write_onnx(program: ExportedProgram, path: Path, outputs: tuple[str, ...]) -> None:
    inputs = program.graph_signature.user_inputs
    exported = torch.onnx.export(
        program,
        input_names=inputs,
        output_names=outputs,
        dynamic_shapes={name: {0: "rows"} for name in inputs},  # the name in the file
        dynamo=True,
        verbose=False,
    )
    assert exported is not None
    _take_no_rows(exported.model.graph)
    exported.save(path)


def _take_no_rows(graph: Any) -> None:
    """Let an onnx_ir.Graph that is given no row compute one and leave it out of its outputs.

    ONNX Runtime 1.31 ends the process by SIGFPE at an empty batch after some routers and refuses it
    after the others. In PyTorch it cannot be said: torch.export drops a rule about no rows.
    """
    import onnx_ir
    from onnx_ir.tape import Tape

    before, after, first = Tape(), Tape(), graph[0]
    filled = [onnx_ir.Value(name=f"{value.name}_filled") for value in graph.inputs]
    for value, other in zip(graph.inputs, filled, strict=True):
        value.replace_all_uses_with(other)
    zero = before.op("Constant", [], {"value_ints": [0]})
    rows = before.op("Shape", [graph.inputs[0]])
    is_empty = before.op("Cast", [before.op("Equal", [rows, zero])], {"to": onnx_ir.DataType.INT64})
    for value, other in zip(graph.inputs, filled, strict=True):
        others = [zero] * (len(value.shape) - 1)
        ends = before.op("Concat", [zero, *others, is_empty, *others], {"axis": 0})
        before.op("Pad", [value, ends], output=other)
    for place, value in enumerate(graph.outputs):
        cut = onnx_ir.Value(name=value.name, type=value.type, shape=value.shape)
        value.name = f"{value.name}_filled"
        graph.outputs[place] = after.op("Slice", [value, zero, rows, zero], output=cut)
    graph.insert_before(first, before.nodes)
    graph.extend(after.nodes)


def _load_onnx(path: Path) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    names = [one.name for one in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        given = zip(names, inputs, strict=True)
        outputs = session.run(None, {name: one.numpy() for name, one in given})
        return [torch.from_numpy(output) for output in outputs]

    return run


FORMATS = {
    "pt2": Format("model.pt2", (), _write_pt2, lambda path: torch.export.load(path).module()),
    "onnx": Format("model.onnx", ("onnx", "onnxscript", "onnxruntime"), _write_onnx, _load_onnx),
    "aoti": Format(
        "model.aoti.pt2",
        (),
        lambda program, path, outputs: torch._inductor.aoti_compile_and_package(
            program, package_path=str(path)
        ),
        lambda path: torch._inductor.aoti_load_package(str(path)),
    ),
}
