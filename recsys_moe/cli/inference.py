"""`recsys-moe evaluate`, `predict` and `recommend`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

logger = logging.getLogger("recsys_moe")

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
    from recsys_moe.errors import GateError
    from recsys_moe.evaluate import evaluate_artifact, parse_gates, save_evaluation
    from recsys_moe.progress import row_progress

    gates = parse_gates(model, min_ or [], max_ or [])
    with row_progress(f"evaluating {split}") as progress:
        result = evaluate_artifact(model, split, data, progress)
    save_evaluation(model, result)
    print(json.dumps(result) if as_json else table(result, f"{split}, {result['rows']} rows"))
    if missed := [text for gate in gates if (text := gate.missed(result))]:
        raise GateError("; ".join(missed))


def predict(
    model: Model,
    input_: Annotated[Path, typer.Option("--input", help="CSV or Parquet with pairs.")],
    output: Annotated[Path, typer.Option(help="CSV or Parquet to write.")],
    user: Annotated[str, typer.Option(help="Column with raw user ids.")] = "user",
    item: Annotated[str, typer.Option(help="Column with raw item ids.")] = "item",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
    as_json: Json = False,
) -> None:
    """Score a file of (user, item) pairs by raw id; unseen ids are flagged, never an error."""
    from recsys_moe.predict import predict_file
    from recsys_moe.predictor import Predictor
    from recsys_moe.progress import row_progress

    with row_progress("predicting") as progress:
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


def recommend(
    model: Model,
    user: Annotated[str, typer.Option(help="Raw user id.")],
    k: Annotated[int, typer.Option(min=1, help="Number of items.")] = 10,
    exclude_seen: Annotated[
        bool, typer.Option("--exclude-seen", help="Leave out items watched in training.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The best items of the whole catalogue for one user."""
    from recsys_moe.predictor import Predictor

    predictor = Predictor.load(model)
    ranked = predictor.recommend(user, k, exclude_seen)
    unseen = predictor.is_unseen_user(user)
    if as_json:
        items = [{"rank": r.rank, "item": r.item, "title": r.title, **r.scores} for r in ranked]
        print(json.dumps({"user": user, "unseen_user": unseen, "items": items}))
        return
    if unseen:
        logger.info(
            "user %s was not seen in training: recommendations for nobody in particular", user
        )
    tasks = [task.name for task in predictor.tasks]
    print("  ".join([f"{'rank':>4}", f"{'item':>10}", *(f"{name:>8}" for name in tasks), "title"]))
    for entry in ranked:
        scores = [f"{entry.scores[name]:8.3f}" for name in tasks]
        print("  ".join([f"{entry.rank:4d}", f"{entry.item:>10}", *scores, entry.title or ""]))


def table(result: dict[str, Any], title: str) -> str:
    """An evaluation for people."""
    lines = [f"{title}: loss {result['loss']:.4f}"]
    for task, metrics in result["tasks"].items():
        numbers = [f"{n} {v:.4f}" for n, v in metrics.items() if isinstance(v, float)]
        routing = result["routing"][task]
        visits = f"{routing['experts_per_example']:.2f} experts per example"
        lines.append(f"  {task:8} {'  '.join(numbers)}  ({metrics['rows']} rows, {visits})")
    return "\n".join(lines)
