"""`recsys-moe export`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any

from recsys_moe.cli.options import Json, Model, Overwrite, opt

logger = logging.getLogger("recsys_moe")


def export(
    model: Model,
    out: Annotated[Path, opt("Folder to create.")],
    format_: Annotated[
        str, opt("Graph formats to add, of pt2, onnx, aoti.", "--format", metavar="NAME,...")
    ] = "",
    step: Annotated[
        bool,
        opt(
            "Write graphs of one event (state to state) and of scores, not of whole windows.",
            "--step",
        ),
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Export a model for deployment.

    Writes a minimal model folder and, with --format, graphs for other runtimes. Every graph is
    compared with the model on sampled rows, and its latency is measured.
    """
    from recsys_moe.artifact.export import export as run_export

    formats = [name.strip() for name in format_.split(",") if name.strip()]
    report = run_export(
        model,
        out,
        formats,
        step=step,
        overwrite=overwrite,
        progress=lambda name: logger.info("export: %s", name),
    )
    print(json.dumps(report) if as_json else table(report, out))


def table(report: dict[str, Any], out: Path) -> str:
    """The report as text: a line per format."""
    lines = [f"{out}: model folder, {_megabytes(report['bytes'])}"]
    if report["formats"]:
        lines.append(f"  {'':6} {'size':>10} {'1 row':>10} {'1000 rows':>10}  largest difference")
    for name, entry in report["formats"].items():
        size = _megabytes(entry["bytes"]) if "bytes" in entry else ""
        times = [f"{ms:.2f} ms" for ms in entry["latency_ms"].values()]
        columns = [f"{name:6}", *(f"{cell:>10}" for cell in (size, *times))]
        lines.append(f"  {' '.join(columns)}  {_parity(entry)}".rstrip())
    return "\n".join(lines)


def _parity(entry: dict[str, Any]) -> str:
    if (parity := entry.get("parity")) is None:
        return ""
    ties = f", {parity['masked_near_ties']} near-ties excluded"
    return f"{parity['max_difference']:.1e} on {parity['rows']} rows{ties}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
