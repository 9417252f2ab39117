"""`recsys-moe evaluate` and `predict`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from recsys_moe.cli.options import Json, Model, MovedData, Overwrite, Ranking, opt
from recsys_moe.cli.periods import period_lines
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import metric_title

logger = logging.getLogger("recsys_moe.evaluate")

THRESHOLD = "TASK.METRIC=BOUND"


def evaluate(
    model: Model,
    split: Annotated[str, opt("Split: train, val or test.")] = "test",
    data: MovedData = None,
    min_: Annotated[
        list[str] | None,
        opt(
            "Exit with code 4 below it, e.g. watch.auc=0.8. Repeatable.", "--min", metavar=THRESHOLD
        ),
    ] = None,
    max_: Annotated[
        list[str] | None,
        opt(
            "Exit with code 4 above it, e.g. rating.mse=1. Repeatable.", "--max", metavar=THRESHOLD
        ),
    ] = None,
    ranking: Ranking = False,
    k: Annotated[int | None, opt("With --ranking: items per list; 10 by default.")] = None,
    task: Annotated[
        str | None, opt("With --ranking: binary task to rank by; the first by default.")
    ] = None,
    relevant: Annotated[
        str | None,
        opt(
            "With --ranking: which positives are relevant, e.g. rating>=4.", metavar="TASK>=NUMBER"
        ),
    ] = None,
    periods: Annotated[
        int | None,
        opt("Also print metrics of so many periods of the split, in the order of time."),
    ] = None,
    plot: Annotated[
        Path | None, opt("With --periods: draw them to this .svg or .png.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model on a split.

    Prints AUC, BCE and ECE of binary tasks, MSE, RMSE and MAE of regressions, baselines and experts
    per example (with --json their load); with --ranking also NDCG, recall, MRR, hit rate and GAUC
    of top-N lists; with --periods also normalised entropy and predicted over observed.
    """
    from recsys_moe.artifact.thresholds import parse_thresholds
    from recsys_moe.errors import GateError

    asked = {"k": k, "task": task, "relevant": relevant}
    options = {name: value for name, value in asked.items() if value is not None}
    if options and not ranking:
        raise ConfigError(f"--{next(iter(options))} needs --ranking; pass both")
    if plot is not None:
        _check_plot(plot, periods)
    thresholds = parse_thresholds(model, min_ or [], max_ or [])
    result = evaluated(model, split, data, options if ranking else None, periods=periods)
    if plot is not None:
        from recsys_moe.lab.report.plots_periods import save_plot

        save_plot(plot, result["periods"])
    print(json.dumps(result) if as_json else table(result, f"{split}, {result['rows']} rows"))
    if missed := [text for one in thresholds if (text := one.missed(result))]:
        raise GateError("; ".join(missed))


def _check_plot(plot: Path, periods: int | None) -> None:
    from recsys_moe.lab.report.plots_periods import check_plot

    if periods is None:
        raise ConfigError("--plot needs --periods; pass both")
    check_plot(plot)


def evaluated(
    model: Path,
    split: str,
    data: Path | None,
    ranking: dict[str, Any] | None = None,
    *,
    periods: int | None = None,
) -> dict[str, Any]:
    """Metrics of a split, saved in the run too. `ranking`: options of `evaluate_ranking`."""
    from recsys_moe.artifact.evaluate import evaluate_artifact, save_evaluation
    from recsys_moe.progress import row_progress

    ranked = {} if ranking is None else {"ranking": _ranked(model, split, data, ranking)}
    with row_progress(f"evaluating {split}") as progress:
        result = evaluate_artifact(model, split, data, progress, periods=periods)
    save_evaluation(model, result | ranked)
    return result | ranked


def _ranked(model: Path, split: str, data: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    from recsys_moe.inference.evaluation.ranking import evaluate_ranking
    from recsys_moe.progress import row_progress

    with row_progress(f"ranking items for users of {split}") as progress:
        return evaluate_ranking(model, split, data, progress=progress, **options)


def sampled(model: Path, result: dict[str, Any], data: Path | None) -> dict[str, Any] | None:
    """Metrics of `sample_ranking` on the split of `result`; None without a binary task.

    Scores as many pairs as the best epoch trained on, a few percent of the time of `fit`. Warns
    where the lists do not beat popularity.
    """
    from recsys_moe.artifact.baselines import not_beaten
    from recsys_moe.artifact.evaluate import recorded_data
    from recsys_moe.inference.evaluation.ranking import sample_ranking
    from recsys_moe.schema import Schema

    trained = Schema.load(data or recorded_data(model)).rows["train"] * result["epoch"]
    ranking = sample_ranking(model, result["split"], data, most_pairs=trained)
    if ranking is not None:
        own, bound = ranking["ndcg"], ranking["baselines"]["popularity"]["ndcg"]
        name = f"{ranking['task']} NDCG@{ranking['k']}"
        if own <= bound:
            logger.warning(not_beaten(result, name, own, "popularity", bound=bound))
    return ranking


def predict(
    model: Model,
    input_: Annotated[Path, opt("Pairs to score: CSV, TSV (also .gz) or Parquet.", "--input")],
    output: Annotated[Path, opt("File to write: CSV, TSV or Parquet.")],
    user: Annotated[str, opt("Column of user ids.")] = "user",
    item: Annotated[str, opt("Column of item ids.")] = "item",
    encoding: Annotated[
        str, opt("Encoding of a text input, e.g. cp1252; the output is UTF-8.")
    ] = "utf-8",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Score a file of (user, item) pairs.

    Unknown ids are scored with an out-of-vocabulary embedding and flagged in the output.
    """
    from recsys_moe.encodings import known
    from recsys_moe.inference.files.predict import check_paths, predict_file
    from recsys_moe.inference.files.tables import count_rows
    from recsys_moe.inference.predictor import Predictor
    from recsys_moe.progress import row_progress

    check_paths(input_, output, overwrite)
    known(encoding)
    with row_progress("predicting", count_rows(input_)) as progress:
        counts = predict_file(
            Predictor.load(model),
            input_,
            output,
            user=user,
            item=item,
            encoding=encoding,
            overwrite=overwrite,
            progress=progress,
        )
    words = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
    print(json.dumps(counts) if as_json else f"{output}: {words}")


def table(result: dict[str, Any], title: str) -> str:
    """An evaluation as text."""
    lines = [f"{title}: loss {result['loss']:.4f}"]
    for task, metrics in result["tasks"].items():
        numbers = [f"{metric_title(n)} {v:.4f}" for n, v in metrics.items() if isinstance(v, float)]
        visits = ""
        if task in result["routing"]:
            visits = f", {result['routing'][task]['experts_per_example']:.2f} experts per example"
        lines.append(f"  {task:8} {'  '.join(numbers)}  ({metrics['rows']} rows{visits})")
        lines.append(f"  {'':8} {_baselines(result['baselines'][task], metrics['rows'])}")
    lines += list(_unknown(result.get("segments", {})))
    if "ranking" in result:
        lines += ["", *ranking_lines(result["ranking"])]
    if "periods" in result:
        lines += ["", *period_lines(result)]
    return "\n".join(lines)


def _unknown(segments: dict[str, Any]) -> Iterator[str]:
    """A line per segment of rows with an unknown user or item, or with a category of a context."""
    for name, segment in segments.items():
        if name == "both_known":
            continue
        first = ((task, *next(iter(found.items()))) for task, found in segment["tasks"].items())
        shown = [f"{task} {metric_title(key)} {v:.4f}" for task, key, v in first if v is not None]
        title = name if "=" in name else name.replace("_", " ")
        yield f"  {title} ({segment['rows']} rows): {', '.join(shown) or '-'}"


def _baselines(named: dict[str, dict[str, float | None]], rows: int) -> str:
    """The baselines below a model's metrics on so many labelled rows."""
    numbers = [
        f"{name.replace('_', ' ')} {metric_title(metric)} {value:.4f}"
        for name, metrics in named.items()
        for metric, value in metrics.items()
        if value is not None
    ]
    none = "none, all labels are of one class" if rows else "none, no labelled rows"
    return f"baseline: {', '.join(numbers) or none}"


def ranking_lines(ranking: dict[str, Any]) -> Iterator[str]:
    """A ranking report as text."""
    from recsys_moe.inference.evaluation.ranking_report import titles

    least = f" with {ranking['at_least']}" if ranking["at_least"] else ""
    seen = f" except positives of {' and '.join(ranking['excluded'])}"
    yield (
        f"top-N evaluation by {ranking['task']}: {ranking['users']} users, {ranking['relevant']} "
        f"relevant items{least}, all {ranking['items']} items ranked"
        f"{seen if ranking['excluded'] else ''}"
    )
    popular = ranking["baselines"]["popularity"]
    yield f"  {'':15} {'mean':>7}  {'95% interval':15}  baseline: popularity"
    for name, title in titles(ranking["k"]).items():
        interval = " - ".join(f"{bound:.4f}" for bound in ranking["intervals"].get(name, []))
        numbers = _number(ranking[name]), f"{interval:15}", _number(popular[name])
        yield f"  {title:15} {'  '.join(numbers)}"
    for name in ("cold_users", "cold_items"):
        segment, names = ranking["segments"][name], titles(ranking["k"]).items()
        if segment["users"]:
            shown = [f"{t} {_number(segment[f]).strip()}" for f, t in names if f in segment]
            yield f"  {name.replace('_', ' ')} ({segment['users']} users): {', '.join(shown)}"
    for count, why in (
        (ranking["relevant_of_unknown_users"], "of unknown users"),
        (ranking["relevant_excluded"], "whose item the user had interacted with before"),
    ):
        if count:
            yield f"  left out: {count} relevant rows {why}"


def sample_lines(ranking: dict[str, Any]) -> Iterator[str]:
    """The ranking of some users as `fit` prints it."""
    name = f"NDCG@{ranking['k']}"
    users = f"{ranking['users']:,} of {ranking['of_users']:,} users"
    ranked = f"{ranking['items']:,} items ranked by {ranking['task']} for {users}"
    yield f"  {'ranking':8} {name} {ranking['ndcg']:.4f}  ({ranked})"
    popular = ranking["baselines"]["popularity"]["ndcg"]
    yield f"  {'':8} baseline: popularity {name} {popular:.4f}"


def _number(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{value:7.4f}"
