"""What scoring takes: a file of pairs by `predict`, and a list for every user by `recommend`.

    python benchmarks/scoring.py RUN [--pairs N] [--users N] [--rounds N] [--clock wall|cpu]

Pairs drawn evenly go from Parquet to Parquet; the 100 best items by the first task, those seen left
out, are written for all users, or for fewer, whose rate then stands for all. Each in a fresh
process, in turn, from loading the model on. `--clock cpu` is for a machine with other work: it
counts the processor time of all threads, and half of it stands for the time on two cores.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.errors import DataError
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.files.recommend import recommend_file
from recsys_moe.inference.predictor import Predictor

PAIRS_PER_SECOND, SECONDS, MB, CORES = 300_000, 35, 1000, 2


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=3)
    parser.add_argument("run", help="run or model folder")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=10**9, help="ranked for, if there are as many")
    parser.add_argument("--stage", choices=STAGES, help="measure this very process")
    options = common.parse(parser, argv)
    if options.quick:
        options.pairs, options.users = 20_000, 20
    if options.stage:
        print(json.dumps(measure(options)))
        return
    if not common.has_peaks("scoring"):
        return
    try:
        load_artifact(Path(options.run))
    except DataError as error:
        parser.error(str(error))
    sizes = ["--pairs", options.pairs, "--users", options.users, "--clock", options.clock]
    words = [__file__, options.run, *sizes, "--stage"]
    rounds: dict[str, list[dict[str, Any]]] = {stage: [] for stage in STAGES}
    for _ in range(options.rounds):
        for stage, found in rounds.items():
            found.append(common.measured(stage, [*words, stage]))
    show(rounds, options)


def measure(options: Any) -> dict[str, float]:
    """What one stage took in this process."""
    with tempfile.TemporaryDirectory(prefix="scoring-") as folder:
        source, target = Path(folder) / "in.parquet", Path(folder) / "out.parquet"
        STAGES[options.stage][0](Predictor.load(options.run), options, source)
        now = common.CLOCKS[options.clock]
        start = now()
        predictor = Predictor.load(options.run)
        done = STAGES[options.stage][1](predictor, source, target)
        seconds = now() - start
    parts = done / (predictor.users.feature.size if options.stage == "recommend" else 1)
    share = CORES if options.clock == "cpu" else 1
    return {"seconds": seconds / parts / share, "mb": common.resident("VmHWM")}


def write_pairs(predictor: Predictor, options: Any, path: Path) -> None:
    rng = np.random.default_rng(0)
    entities = {"user": predictor.users.ids, "item": predictor.items.ids}
    drawn = {name: rng.integers(0, len(ids), options.pairs) for name, ids in entities.items()}
    pq.write_table(pa.table({name: ids.take(drawn[name]) for name, ids in entities.items()}), path)


def write_users(predictor: Predictor, options: Any, path: Path) -> None:
    """Evenly spread over all, so that those with long histories are among them."""
    ids = predictor.users.ids
    count = min(options.users, len(ids))
    places = np.unique(np.linspace(0, len(ids) - 1, count).astype(int))
    pq.write_table(pa.table({"user": ids.take(places)}), path)


def predict(predictor: Predictor, source: Path, target: Path) -> int:
    """Per pair."""
    return predict_file(predictor, source, target)["rows"]


def recommend(predictor: Predictor, source: Path, target: Path) -> int:
    return recommend_file(predictor, source, target, 100, exclude_seen=True)["users"]


Prepare = Callable[[Predictor, Any, Path], None]
Stage = Callable[[Predictor, Path, Path], int]
STAGES: dict[str, tuple[Prepare, Stage]] = {
    "predict": (write_pairs, predict),
    "recommend": (write_users, recommend),
}


def show(rounds: dict[str, list[dict[str, Any]]], options: Any) -> None:
    """Seconds: of a pair, and of all users."""
    seconds = {stage: [one["seconds"] for one in found] for stage, found in rounds.items()}
    peaks = {stage: max(one["mb"] for one in found) for stage, found in rounds.items()}
    rates = common.spread([1 / value for value in seconds["predict"]])
    all_users = common.spread(seconds["recommend"])
    how = f"derived: half of the processor time ({CORES} cores)" if options.clock == "cpu" else ""
    columns = {"what": "{what}", "median (p10 - p90)": "{value}", "peak MB": "{mb:.0f}"}
    rows = [
        {"what": "predict, pairs/s", "value": f"{rates:,.0f}", "mb": peaks["predict"]},
        {
            "what": "recommend for all users, s",
            "value": f"{all_users:.1f}",
            "mb": peaks["recommend"],
        },
    ]
    common.table(columns, rows)
    print(how + "\n" if how else "", end="")
    targets = [
        common.target("predict, pairs/s", rates.median, PAIRS_PER_SECOND, at_least=True),
        common.target("recommend for all users", all_users.median, SECONDS, " s"),
        common.target("peak of recommend", peaks["recommend"], MB, " MB"),
    ]
    numbers = {"pairs": options.pairs, "users": options.users, "clock": options.clock, "how": how}
    common.report("scoring", {**numbers, "rates": rates, "all_users": all_users}, targets)


if __name__ == "__main__":
    main()
