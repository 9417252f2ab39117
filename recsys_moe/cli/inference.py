"""`recsys-moe evaluate` and `predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[Path, typer.Argument(metavar="RUN|MODEL", help="Run folder or model folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
GATE = "TASK.METRIC=BOUND"


def evaluate(
    model: Model,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    data: Annotated[Path | None, typer.Option(help="Prepared folder, if it has moved.")] = None,
    min_: Annotated[
        list[str] | None, typer.Option("--min", metavar=GATE, help="Exit with 4 when below.")
    ] = None,
    max_: Annotated[
        list[str] | None, typer.Option("--max", metavar=GATE, help="Exit with 4 when above.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Exact metrics of a model on a split: AUC, BCE, ECE, MSE, RMSE, MAE, routing load."""
    from recsys_moe.artifact.gates import parse_gates
    from recsys_moe.errors import GateError

    gates = parse_gates(model, min_ or [], max_ or [])
    result = evaluated(model, split, data)
    print(json.dumps(result) if as_json else table(result, f"{split}, {result['rows']} rows"))
    if missed := [text for gate in gates if (text := gate.missed(result))]:
        raise GateError("; ".join(missed))


def evaluated(model: Path, split: str, data: Path | None) -> dict[str, Any]:
    """The metrics of a split, which the run keeps."""
    from recsys_moe.artifact.evaluate import evaluate_artifact, save_evaluation
    from recsys_moe.progress import row_progress

    with row_progress(f"evaluating {split}") as progress:
        result = evaluate_artifact(model, split, data, progress)
    save_evaluation(model, result)
    return result


def predict(
    model: Model,
    input_: Annotated[
        Path, typer.Option("--input", help="CSV, TSV (or .gz of it) or Parquet with pairs.")
    ],
    output: Annotated[Path, typer.Option(help="CSV, TSV or Parquet to write.")],
    user: Annotated[str, typer.Option(help="Column with raw user ids.")] = "user",
    item: Annotated[str, typer.Option(help="Column with raw item ids.")] = "item",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
    as_json: Json = False,
) -> None:
    """Score a file of (user, item) pairs by raw id; unseen ids are flagged, never an error."""
    from recsys_moe.inference.predictor import Predictor
    from recsys_moe.inference.score_files import count_rows, predict_file
    from recsys_moe.progress import row_progress

    with row_progress("predicting", count_rows(input_)) as progress:
        counts = predict_file(
            Predictor.load(model),
            input_,
            output,
            user=user,
            item=item,
            overwrite=overwrite,
            progress=progress,
        )
    words = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
    print(json.dumps(counts) if as_json else f"{output}: {words}")


def table(result: dict[str, Any], title: str) -> str:
    """An evaluation for people."""
    lines = [f"{title}: loss {result['loss']:.4f}"]
    for task, metrics in result["tasks"].items():
        numbers = [f"{n} {v:.4f}" for n, v in metrics.items() if isinstance(v, float)]
        routing = result["routing"][task]
        visits = f"{routing['experts_per_example']:.2f} experts per example"
        lines.append(f"  {task:8} {'  '.join(numbers)}  ({metrics['rows']} rows, {visits})")
        lines.append(f"  {'':8} {_baselines(result['baselines'][task])}")
    return "\n".join(lines)


def _baselines(named: dict[str, dict[str, float | None]]) -> str:
    """Beside a model's metrics: what needs no model."""
    numbers = [
        f"{name.replace('_', ' ')} {metric} {value:.4f}"
        for name, metrics in named.items()
        for metric, value in metrics.items()
        if value is not None
    ]
    return f"to beat: {', '.join(numbers)}" if numbers else "to beat: no labelled rows"
