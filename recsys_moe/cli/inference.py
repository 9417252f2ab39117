"""`recsys-moe evaluate` and `predict`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recsys_moe.cli.evaluation_text import table
from recsys_moe.cli.options import Events, Json, Model, MovedData, Overwrite, Ranking, opt
from recsys_moe.errors import ConfigError

if TYPE_CHECKING:
    from recsys_moe.config.past import Past

logger = logging.getLogger("recsys_moe.evaluate")

THRESHOLD = "TASK.METRIC=BOUND"
Lists = Annotated[
    str | None,
    opt("With --ranking: lists per user (user), relevant row (successive), or last one (last)."),
]
Retrieve = Annotated[
    int | None, opt("With --ranking: two stages, of which the first leaves so many items.", min=1)
]
History = Annotated[
    str | None, opt("What rows see of their user: running (all before) or frozen (earlier splits).")
]
TieRule = Annotated[
    str | None, opt("What is before a row in the same second: strict (nothing), log or shuffle.")
]
Periods = Annotated[
    int | None, opt("Also print metrics of so many periods of the split, in the order of time.")
]
Plot = Annotated[
    Path | None, opt("With --periods: draw them to this .svg or .png.", metavar="FILE")
]


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
    lists: Lists = None,
    retrieve: Retrieve = None,
    history: History = None,
    tie_rule: TieRule = None,
    periods: Periods = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model on a split.

    Prints AUC, BCE and ECE of binary tasks, MSE, RMSE and MAE of regressions, baselines and experts
    per example (with --json their load); with --ranking also NDCG, recall, MRR, hit rate and GAUC
    of top-N lists; with --periods also normalised entropy and predicted over observed.
    """
    from recsys_moe.artifact.thresholds import parse_thresholds
    from recsys_moe.config.past import Past
    from recsys_moe.errors import GateError

    asked = {"k": k, "task": task, "relevant": relevant, "retrieve": retrieve}
    options = {name: value for name, value in asked.items() if value is not None}
    if (options or lists) and not ranking:
        raise ConfigError(f"--{next(iter([*options, 'lists']))} needs --ranking; pass both")
    if plot is not None:
        _check_plot(plot, periods)
    thresholds = parse_thresholds(model, min_ or [], max_ or [])
    past = Past(history, tie_rule, lists)
    ranked = options if ranking else None
    result = evaluated(model, split, data, ranked, periods=periods, past=past)
    if plot is not None:
        _save_plot(plot, result)
    print(json.dumps(result) if as_json else table(result, f"{split}, {result['rows']} rows"))
    if missed := [text for one in thresholds if (text := one.missed(result))]:
        raise GateError("; ".join(missed))


def _check_plot(plot: Path, periods: int | None) -> None:
    from recsys_moe.lab.report.plots_periods import check_plot

    if periods is None:
        raise ConfigError("--plot needs --periods; pass both")
    check_plot(plot)


def _save_plot(plot: Path, result: dict[str, Any]) -> None:
    from recsys_moe.lab.report.plots_periods import save_plot

    save_plot(plot, result["periods"])


def evaluated(
    model: Path,
    split: str,
    data: Path | None,
    ranking: dict[str, Any] | None = None,
    *,
    periods: int | None = None,
    past: Past | None = None,
) -> dict[str, Any]:
    """Metrics of a split, saved in the run too unless options ask for another past than rows see
    by default or two stages. `ranking`: options of `evaluate_ranking`."""
    from recsys_moe.artifact.evaluate import (
        WHOLE,
        evaluate_artifact,
        save_evaluation,
        warn_of,
    )
    from recsys_moe.progress import row_progress

    past = past or WHOLE
    ranked = {}
    if ranking is not None:
        ranked["ranking"] = _ranked(model, split, data, ranking | {"past": past})
    with row_progress(f"evaluating {split}") as progress:
        result = evaluate_artifact(model, split, data, progress, periods=periods, past=past)
    warn_of(result)
    if ranked:
        warn_of_lists(result, ranked["ranking"])
    if past == WHOLE and "retrieve" not in (ranking or {}):
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
    from recsys_moe.artifact.evaluate import recorded_data
    from recsys_moe.inference.evaluation.ranking import sample_ranking
    from recsys_moe.schema import Schema

    trained = Schema.load(data or recorded_data(model)).rows["train"] * result["epoch"]
    ranking = sample_ranking(model, result["split"], data, most_pairs=trained)
    if ranking is not None:
        warn_of_lists(result, ranking)
    return ranking


def warn_of_lists(result: dict[str, Any], ranking: dict[str, Any]) -> None:
    """Warn where lists do not beat popularity."""
    from recsys_moe.artifact.baselines import not_beaten

    own, bound = ranking["ndcg"], ranking["baselines"]["popularity"]["ndcg"]
    name = f"{ranking['task']} NDCG@{ranking['k']}"
    if own is not None and bound is not None and own <= bound:
        logger.warning(not_beaten(result, name, own, "popularity", bound=bound))


def predict(
    model: Model,
    input_: Annotated[Path, opt("Pairs to score: CSV, TSV (also .gz) or Parquet.", "--input")],
    output: Annotated[Path, opt("File to write: CSV, TSV or Parquet.")],
    user: Annotated[str, opt("Column of user ids.")] = "user",
    item: Annotated[str, opt("Column of item ids.")] = "item",
    encoding: Annotated[
        str, opt("Encoding of a text input, e.g. cp1252; the output is UTF-8.")
    ] = "utf-8",
    events: Events = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Score a file of (user, item) pairs.

    Unknown ids are scored with an out-of-vocabulary embedding and flagged in the output.
    """
    from recsys_moe.encodings import known
    from recsys_moe.inference.files.events import observe_file
    from recsys_moe.inference.files.predict import check_paths, predict_file
    from recsys_moe.inference.files.tables import count_rows
    from recsys_moe.inference.predictor import Predictor
    from recsys_moe.progress import row_progress

    check_paths(input_, output, overwrite)
    known(encoding)
    predictor = Predictor.load(model)
    if events is not None:
        observe_file(predictor, events)
    with row_progress("predicting", count_rows(input_)) as progress:
        counts = predict_file(
            predictor,
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
