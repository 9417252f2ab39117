"""Models that read the order of events: trains what is missing, run after run, and tests it.

    python -m research.in_order --data DIR --out DIR [--only movielens_1m_next-moesart]
    python -m research.in_order                                            # the page alone

DIR of `--data` has the prepared folders that the heads of the configurations name: ml-1m-last,
ml-1m-time and ml-100k-time. A row is written to research/results/in-order.csv when its run is
tested; a run that was interrupted goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common
from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.config.files import find_config, merge_all, read_config_file
from recsys_moe.config.past import Past
from recsys_moe.config.settings import parse_config
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.train.fit import fit
from research.in_order.page import write_page

ROWS = Path(__file__).parents[1] / "results" / "in-order.csv"
DATA = {
    "movielens_1m_next": "ml-1m-last",
    "movielens_1m_time": "ml-1m-time",
    "movielens_100k_time": "ml-100k-time",
    "movielens_1m_next+time": "ml-1m-last",
}
TIME = {"model": {"time_features": "all"}}
"""Of configurations with `+time`, which read the time of the row."""
SEEDS = range(3)
OTHERS: dict[str, dict[str, Any]] = {"softmax": {}, "topk": {"k": 2}}
"""Routers beside MOESART, on the first configuration, and their settings."""
LISTS = {"movielens_1m_time": "successive"}
"""Of each relevant row after the cut, not of each user."""
PRECISION = "bf16-mixed"
"""Of training, in two thirds of the time of 32 bits on processors that have it."""


class Job(NamedTuple):
    """A run."""

    config: str
    router: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.config}-{self.router}-seed{self.seed}"


def jobs() -> Iterator[Job]:
    for seed in SEEDS:
        for config in DATA:
            yield Job(config, "moesart", seed)
        for router in OTHERS:
            yield Job(next(iter(DATA)), router, seed)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="has the prepared folders")
    parser.add_argument("--out", type=Path, help="for runs, which stay")
    parser.add_argument("--rows", type=Path, default=ROWS, help="finished runs")
    parser.add_argument("--only", default="", help="runs whose name starts with this")
    options = parser.parse_args(argv)
    if (options.data is None) != (options.out is None):
        parser.error("--data and --out must be given together")
    for job in jobs() if options.out is not None else ():
        if job.name.startswith(options.only) and job.name not in done(options.rows):
            row = tested(job, options.data / DATA[job.config], options.out / job.name)
            append(options.rows, {**job._asdict(), **row, "commit": common.commit()})
            print(time.strftime("%H:%M"), job.name, row, flush=True)
    write_page(options.rows)


def tested(job: Job, data: Path, run: Path) -> dict[str, float | str]:
    """Train the run, unless it is, and test the model on the future. Minutes are those of a run
    that went through in one go."""
    is_whole, begun = not run.exists(), time.process_time()
    if not (run / "model").is_dir():
        fit(parse_config(settings(job)), data, run, resume="auto")
    minutes = (time.process_time() - begun) / 60
    found = evaluate_artifact(run, "test", data)
    past = Past(tie_rule="shuffle", lists=LISTS.get(job.config))
    shuffled = evaluate_ranking(run, "test", data, past=past)
    lists = shuffled["by_log"]
    watch, rating = (found["tasks"][name] for name in ("watch", "rating"))
    return {
        "minutes": minutes if is_whole else "",
        "loss": found["loss"],
        "auc": watch["auc"],
        "mse": rating["mse"],
        "ndcg": lists["ndcg"],
        "hit_rate": lists["hit_rate"],
        "ndcg_shuffled": shuffled["ndcg"],
        "hit_rate_shuffled": shuffled["hit_rate"],
        "popularity": shuffled["baselines"]["popularity"]["ndcg"],
    }


def settings(job: Job) -> dict[str, Any]:
    """The configuration with the settings of this job."""
    config, _, reads_time = job.config.partition("+")
    base = read_config_file(str(find_config(config)))
    if job.router in OTHERS:
        base["model"]["router"] = {"name": job.router, **OTHERS[job.router]}
    return merge_all(
        [base, TIME if reads_time else {}, {"trainer": {"seed": job.seed, "precision": PRECISION}}]
    )


def done(path: Path) -> set[str]:
    """Names of the runs with a row."""
    return {Job(one["config"], one["router"], int(one["seed"])).name for one in rows_of(path)}


def rows_of(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def append(path: Path, row: dict[str, Any]) -> None:
    """One line more, whose names may be more than those before it."""
    cells = {n: f"{v:.6g}" if isinstance(v, float) else str(v) for n, v in row.items()}
    lines = [*rows_of(path), cells]
    names = list(dict.fromkeys(name for line in lines for name in line))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
