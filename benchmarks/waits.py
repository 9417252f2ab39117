"""What a user waits for: one table of targets, each met, not met or not measured, and its command.

    python benchmarks/waits.py      # what research/results tells; the rest: `make bench`

Axes of the files: a run is one seed of one configuration.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import common

RESULTS = common.ROOT / "research" / "results"


class Fit(NamedTuple):
    page: str
    """The files of research/results with its runs."""
    label: str
    """Of its runs there."""
    epoch: float = math.nan
    """Its seconds beside those of dense softmax, measured in turn: docs/speed.md."""


IDS = Fit("ml-1m-convergence", "moesart", 0.359)
"""movielens_1m, which sees what the paper's sees."""
FEATURES = Fit("ml-1m-features-slopes", "sloped", 0.634)
"""movielens_1m_features, the lowest loss; its seconds with levels in place of slopes, which take as
long."""
QUICK = Fit("ml-1m-quick", "quick_2048")
QUICK_NAME = "movielens_1m_quick"
"""Done soonest."""
PAPER = Fit("ml-1m-convergence", "moesart_paper", 0.486)
LOSS, WEIGHT, SEEDS = 0.4089, "0.9", 3
MINUTES = "ml-1m-minutes.csv"
"""Of processor time, one after the other beside the same other work: an epoch of a configuration
(`fit --max-epochs 1 --evaluate test`, from start to end), and the whole fit of a peer."""
MEASURED = "measurements of an AMD EPYC, 2026-11-25 and 26 (docs/speed.md)"
"""Where and when `Fit.epoch` was taken."""
SHIPPED_BATCH = 2048
NOT_BUILT = "not built"
PEERS_COMPARED = ("rechub", "deepctr")
EPOCHS = (
    "research/epoch_minutes.py --data DATA --config movielens_1m --settings "
    "research/results/ml-1m-epochs.yaml --routers softmax,moesart,bounded,moesart_paper --rounds 3 "
    "--steps 12 --warm-up 4 --threads 1 --validate 20000 --clock cpu"
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
    print(f"Fits and settings: from research/results and {MEASURED}; all else: from this run.\n")
    columns = {name: f"{{{name}}}" for name in ("what", "measured", "target", "met", "command")}
    common.table(columns, [line(wait, results) for wait in WAITS])


def line(wait: Wait, results: Results) -> dict[str, str]:
    found = wait.find(results)
    if isinstance(found, str):
        cells = {"measured": found, "met": "no" if found.startswith(NOT_BUILT) else "not measured"}
    else:
        cells = {"measured": common.reached(found), "met": common.MET[found["met"]]}
    return {"what": wait.what, "target": wait.bound, "command": wait.command, **cells}


def minutes(ours: Fit) -> Callable[[Results], Found]:
    """Epochs to the loss times what an epoch takes, over those of the paper's settings."""

    def find(results: Results) -> Found:
        reached = [epochs_until(fit, has_the_loss) for fit in (ours, PAPER)]
        for fit, epochs in zip((ours, PAPER), reached, strict=True):
            if not epochs:
                return f"{fit.page}.epochs.csv has no run of {fit.label} that reaches {LOSS}"
        one, other = (statistics.mean(epochs) for epochs in reached)
        return common.target("minutes", one * ours.epoch / (other * PAPER.epoch), 0.25, "x")

    return find


def minutes_to_mmoe(results: Results) -> Found:
    """Epochs to the AUC that torch-rechub's MMoE ends at, the best of its fits, times what one
    takes, over its fit."""
    with (RESULTS / "ml-1m-peers.csv").open(encoding="utf-8", newline="") as file:
        fits = [r for r in csv.DictReader(file) if (r["peer"], r["split"]) == ("mmoe", "test")]
    if not fits:
        return "ml-1m-peers.csv has no fit of it"
    auc, epoch, its = max(float(fit["auc"]) for fit in fits), taken(QUICK_NAME), taken("mmoe")
    reached = epochs_until(QUICK, lambda row: float(row["val.watch.auc"]) >= auc)
    if not reached:
        return f"{QUICK.page}.epochs.csv has no run of {QUICK.label} that reaches {auc:.4f}"
    return common.target("minutes", statistics.mean(reached) * epoch / its, 0.125, "x")


def taken(what: str) -> float:
    """Minutes by ml-1m-minutes.csv, the mean over its rounds."""
    with (RESULTS / MINUTES).open(encoding="utf-8", newline="") as file:
        return statistics.mean(
            float(row["minutes"]) for row in csv.DictReader(file) if row["what"] == what
        )


def has_the_loss(row: Mapping[str, str]) -> bool:
    return float(row["val.loss"]) <= LOSS


def epochs_until(fit: Fit, holds: Callable[[Mapping[str, str]], bool]) -> list[int]:
    """Of each run that comes to an epoch of which that holds, the first one."""
    first: dict[str, int] = {}
    for row in rows(fit, "epochs"):
        if holds(row):
            first.setdefault(row["run"], int(row["epoch"]))
    return list(first.values())


def final_loss(results: Results) -> Found:
    """Mean test loss of the shipped configuration of ids above that of the paper-faithful one."""
    losses = {fit: [float(row["loss"]) for row in rows(fit, "runs")] for fit in (IDS, PAPER)}
    for fit, found in losses.items():
        if len(found) < SEEDS:
            return f"{fit.page}.runs.csv has {len(found)} of {SEEDS} seeds of {fit.label}"
    ours, paper = (statistics.mean(found) for found in losses.values())
    return common.target("loss", ours - paper, 0.001)


def rows(fit: Fit, kind: str) -> Iterator[dict[str, str]]:
    """Of the page's files; runs from before a comparison wrote two files are in PAGE.csv."""
    names = [f"{fit.page}.{kind}.csv"] + [f"{fit.page}.csv"] * (kind == "runs")
    for path in (RESULTS / name for name in names):
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as file:
                found = list(csv.DictReader(file))
            yield from (r for r in found if r["label"] == fit.label and r["weight.watch"] == WEIGHT)


def of_script(script: str, what: str) -> Callable[[Results], Found]:
    """The target of a script that is called so: fewer rows than asked have another name."""

    def find(results: Results) -> Found:
        targets = results.get(script, {}).get("targets", [])
        named = (target for target in targets if target["what"] == what)
        return next(named, f"{script}.py did not run, or not on all rows")

    return find


def of_peers(experts: int, least: float) -> Callable[[Results], Found]:
    """The smaller one of the ratios to the two libraries, at the shipped batch size."""

    def find(results: Results) -> Found:
        told = results.get("peers", {})
        found = [
            one["ratio"][0]
            for one in told.get("summary", [])
            if one["experts"] == experts and one["contender"] in PEERS_COMPARED
        ]
        if len(found) < len(PEERS_COMPARED) or told["batch"] != SHIPPED_BATCH:
            return f"needs both peers' environment and batch {SHIPPED_BATCH}"
        return common.target("over the faster peer", min(found), least, "x", at_least=True)

    return find


def told(words: str) -> Callable[[Results], Found]:
    return lambda results: words


WAITS = (
    Wait(f"minutes of fit to validation loss {LOSS} over paper-faithful: movielens_1m (ids)",
         "<= 0.25x", EPOCHS, minutes(IDS)),
    Wait("the same, movielens_1m_features", "<= 0.25x", EPOCHS, minutes(FEATURES)),
    Wait("final loss above paper-faithful's, movielens_1m, 3 seeds", "<= 0.001",
         "recsys-moe compare: research/results/ml-1m-convergence.md", final_loss),
    Wait("minutes to the test AUC of torch-rechub's MMoE on validation, over its whole fit: "
         "movielens_1m_quick", "<= 0.125x",
         "docs/speed.md; python -m research.accuracy --data DATA --out OUT --peers mmoe "
         "--chosen-on research/results/ml-100k-peers.csv", minutes_to_mmoe),
    *(Wait(f"whole loop over torch-rechub and DeepCTR-Torch, E={experts}", f">= {least:g}x", PEERS,
           of_peers(experts, least)) for experts, least in ((16, 8.0), (64, 20.0), (256, 60.0))),
    Wait("predict, pairs/s", ">= 300,000", SCORING, of_script("scoring", "predict, pairs/s")),
    Wait("recommend 100 to all users", "<= 35 s", SCORING,
         of_script("scoring", "recommend for all users")),
    Wait("memory of recommend", "<= 1,000 MB", SCORING, of_script("scoring", "peak of recommend")),
    Wait("16 settings in one process, over compare --jobs 2", "<= 0.5x", "-",
         told(f"{NOT_BUILT}: at best 0.88x, an estimate, docs/speed.md")),
    Wait("16 settings on a GPU, over compare --jobs 2", "<= 0.1x", "recsys-moe compare --jobs 16",
         told("0.02x of another machine's, docs/gpu.md")),
    Wait("prepare of 25 M rows", "<= 60 s", "python benchmarks/preparing.py",
         of_script("preparing", "prepare of 25 M rows")),
    Wait("memory of prepare of 25 M rows", "<= 4,000 MB", "python benchmarks/preparing.py",
         of_script("preparing", "peak of prepare of 25 M rows")),
)  # fmt: skip


if __name__ == "__main__":
    main()
