"""What a user waits for: one table of targets, each met, not met or not measured, and its command.

    python benchmarks/waits.py      # what the files of docs/results tell; the rest: `make bench`

Axes of the files: a run is one seed of one configuration.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import common

RESULTS = common.ROOT / "docs" / "results"


class Fit(NamedTuple):
    page: str
    """The files of docs/results with its runs."""
    epoch: float
    """Its seconds beside those of dense softmax, measured in turn: docs/speed.md."""


FITS = {
    "bounded": Fit("ml-1m-bounded", 0.634),
    "moesart_paper": Fit("ml-1m-convergence", 0.486),
}
"""The shipped configuration with the lowest loss, movielens_1m_features, and the paper's."""
LOSS, WEIGHT, SEEDS = 0.4089, "0.9", 3
EPOCH_MINUTES = 2.3
"""Of processor time, of `fit --config movielens_1m_features --set trainer.max_epochs=1` from start
to end, beside as much other work as the fit of MMoE had: docs/speed.md."""
MEASURED = "measurements of an AMD EPYC, 2026-11-25 (docs/speed.md)"
"""Where and when `Fit.epoch` and EPOCH_MINUTES were taken."""
SHIPPED_BATCH = 2048
EPOCHS = (
    "benchmarks/epoch_minutes.py --data DATA --config movielens_1m --settings "
    "docs/results/ml-1m-epochs.yaml --routers softmax,bounded,moesart_paper"
)
SCORING = "make bench BENCH_ARGS='--run RUN --only scoring'"
PEERS = f"make bench-peers PEERS_ARGS='--batch-size {SHIPPED_BATCH} --clock cpu --threads 1'"
Results = Mapping[str, Mapping[str, Any]]
Found = dict[str, Any] | str
"""A target of `common.target`, or why there is none."""


class Wait(NamedTuple):
    what: str
    bound: str
    command: str
    find: Callable[[Results], Found]


def main() -> None:
    show({})


def show(results: Results) -> None:
    """`results`: the JSON objects of the scripts that ran, by name."""
    print("## What a user waits for\n")
    print(f"The first three lines: from docs/results and {MEASURED}; the others: from this run.\n")
    columns = {name: f"{{{name}}}" for name in ("what", "measured", "target", "met", "command")}
    common.table(columns, [line(wait, results) for wait in WAITS])


def line(wait: Wait, results: Results) -> dict[str, str]:
    found = wait.find(results)
    if isinstance(found, str):
        told = {"measured": found, "met": "not measured"}
    else:
        told = {"measured": common.reached(found), "met": common.MET[found["met"]]}
    return {"what": wait.what, "target": wait.bound, "command": wait.command, **told}


def minutes(results: Results) -> Found:
    """Epochs to the loss times what an epoch takes, shipped over paper-faithful."""
    reached = {label: epochs_until(label, has_the_loss) for label in FITS}
    for label, epochs in reached.items():
        if not epochs:
            return f"{FITS[label].page}.epochs.csv has no run of {label} that reaches {LOSS}"
    ours, paper = (statistics.mean(reached[label]) * fit.epoch for label, fit in FITS.items())
    return common.target("minutes to the loss", ours / paper, 0.25, "x")


def minutes_to_mmoe(results: Results) -> Found:
    """Epochs to the AUC that torch-rechub's MMoE ends at, times what one takes, over its fit."""
    with (RESULTS / "ml-1m-peers.csv").open(encoding="utf-8", newline="") as file:
        fits = [r for r in csv.DictReader(file) if (r["peer"], r["split"]) == ("mmoe", "test")]
    if not fits:
        return "ml-1m-peers.csv has no fit of it"
    fits = [fit for fit in fits if fit["settings"] == fits[-1]["settings"]]  # as its table does
    auc, its = (statistics.mean(float(r[name]) for r in fits) for name in ("auc", "minutes"))
    reached = epochs_until("bounded", lambda row: float(row["val.watch.auc"]) >= auc)
    if not reached:
        return f"{FITS['bounded'].page}.epochs.csv has no run of bounded that reaches {auc:.4f}"
    ours = statistics.mean(reached) * EPOCH_MINUTES
    return common.target("minutes to the AUC of MMoE", ours / its, 0.125, "x")


def has_the_loss(row: Mapping[str, str]) -> bool:
    return float(row["val.loss"]) <= LOSS


def epochs_until(label: str, holds: Callable[[Mapping[str, str]], bool]) -> list[int]:
    """Of each run that comes to an epoch of which that holds, the first one."""
    first: dict[str, int] = {}
    for row in rows("epochs", label):
        if holds(row):
            first.setdefault(row["run"], int(row["epoch"]))
    return list(first.values())


def final_loss(results: Results) -> Found:
    """Mean test loss of the shipped configuration above that of the paper-faithful one."""
    losses = {label: [float(r["loss"]) for r in rows("runs", label)] for label in FITS}
    few = {label: len(found) for label, found in losses.items() if len(found) < SEEDS}
    for label, seeds in few.items():
        return f"{FITS[label].page}.runs.csv has {seeds} of {SEEDS} seeds of {label}"
    ours, paper = (statistics.mean(found) for found in losses.values())
    return common.target("loss above the paper's", ours - paper, 0.001)


def rows(kind: str, label: str) -> Iterator[dict[str, str]]:
    """Of the page's files; runs from before a comparison wrote two files are in PAGE.csv."""
    page = FITS[label].page
    names = [f"{page}.{kind}.csv"] + [f"{page}.csv"] * (kind == "runs")
    for path in (RESULTS / name for name in names):
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as file:
                found = list(csv.DictReader(file))
            yield from (r for r in found if r["label"] == label and r["weight.watch"] == WEIGHT)


def of_script(script: str, what: str) -> Callable[[Results], Found]:
    """The target of a script that begins so."""

    def find(results: Results) -> Found:
        targets = results.get(script, {}).get("targets", [])
        named = (target for target in targets if target["what"].startswith(what))
        return next(named, f"{script}.py did not run, or not on all rows")

    return find


def of_peers(experts: int, least: float) -> Callable[[Results], Found]:
    """The smaller one of the ratios to the two libraries, at the shipped batch size."""

    def find(results: Results) -> Found:
        told = results.get("peers", {})
        found = [
            one["ratio"][0]
            for one in told.get("summary", [])
            if one["experts"] == experts and one["contender"] in ("rechub", "deepctr")
        ]
        if not found or told["batch"] != SHIPPED_BATCH:
            return f"needs the peers' environment and batch {SHIPPED_BATCH}"
        return common.target("over the slower peer", min(found), least, "x", at_least=True)

    return find


def missing(why: str) -> Callable[[Results], Found]:
    return lambda results: why


WAITS = (
    Wait(f"minutes of fit to validation loss {LOSS}, over paper-faithful", "<= 0.25x", EPOCHS,
         minutes),
    Wait("final loss above paper-faithful's, 3 seeds", "<= 0.001",
         "recsys-moe compare: docs/results/ml-1m-bounded.md, ml-1m-convergence.md", final_loss),
    Wait("minutes to the best AUC of torch-rechub's MMoE, over its own", "<= 0.125x",
         "python -m benchmarks.accuracy --data DATA --out OUT --peers mmoe --chosen-on "
         "docs/results/ml-100k-peers.csv", minutes_to_mmoe),
    *(Wait(f"whole loop over torch-rechub and DeepCTR-Torch, E={experts}", f">= {least:g}x", PEERS,
           of_peers(experts, least)) for experts, least in ((16, 8.0), (64, 20.0), (256, 60.0))),
    Wait("predict, pairs/s", ">= 300,000", SCORING, of_script("scoring", "predict")),
    Wait("recommend 100 to all users", "<= 35 s", SCORING, of_script("scoring", "recommend")),
    Wait("memory of recommend", "<= 1,000 MB", SCORING, of_script("scoring", "peak of recommend")),
    Wait("16 settings in one process, over compare --jobs 2", "<= 0.5x", "-",
         missing("not built: at best 0.87x, docs/speed.md")),
    Wait("the same on a GPU", "<= 0.1x", "-", missing("not built, and no GPU at hand")),
    Wait("prepare of 25 M rows", "<= 60 s", "python benchmarks/preparing.py",
         of_script("preparing", "prepare")),
    Wait("memory of prepare of 25 M rows", "<= 4,000 MB", "python benchmarks/preparing.py",
         of_script("preparing", "peak")),
)  # fmt: skip


if __name__ == "__main__":
    main()
