"""Ours against others on the same users: is a difference larger than which users were asked?

    python -m benchmarks.accuracy.paired runs/a runs/b --data data/ml-100k --peers ease,myfm \\
        --chosen ROWS.csv

Seeds tell how much training varies; users vary too, and both models are read on the same ones. So
each user's figures are subtracted (means over the runs given, seeds of one configuration), and
users are drawn anew with replacement: the interval of the mean difference, 95%, as
`evaluate --ranking` has it for one model. Peers are fitted anew, seed 0, with the settings that
the rows of `benchmarks.accuracy` say were chosen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import common
from benchmarks.accuracy import finished, fitting
from benchmarks.accuracy.fitting import PEERS_PYTHON, PeerError, given, run_peer
from benchmarks.accuracy.judge import Answers, Judge, answers_of
from benchmarks.accuracy.peers import PEERS
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.ranking_metrics import PerUser, bootstrap, means

SPLIT = "test"
TITLES = {"ndcg": "NDCG@10", "mse": "rating MSE"}
Figures = dict[str, PerUser]


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    try:
        rows = compared(options)
    except (ConfigError, DataError, PeerError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(3 if isinstance(error, DataError) else 2)
    columns = {"": "{peer}", "figure": "{title}", "ours": "{ours:.4f}", "theirs": "{theirs:.4f}"}
    interval = {"difference": "{difference:+.4f}", "95%, over users": "{low:+.4f} to {high:+.4f}"}
    common.table({**columns, **interval}, rows)
    common.report("paired", {"rows": rows, "runs": len(options.run), "split": SPLIT})


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "benchmarks.accuracy.paired", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("run", type=Path, nargs="+", help="of ours, seeds of one configuration")
    parser.add_argument("--data", type=Path, required=True, help="a prepared folder")
    parser.add_argument("--peers", required=True, help=f"of {', '.join(PEERS)}")
    parser.add_argument("--chosen", type=Path, required=True, metavar="ROWS.csv", help="of peers")
    parser.add_argument("--peers-python", type=Path, default=PEERS_PYTHON)
    options = parser.parse_args(argv)
    options.peers = [name for name in options.peers.split(",") if name]
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        parser.error(f"--peers must be of {', '.join(PEERS)}, got {unknown[0]!r}")
    if not options.chosen.is_file():
        parser.error(f"--chosen {options.chosen}: there is no such file")
    if wrong := fitting.missing(options.peers, options.peers_python):
        parser.error(wrong)
    return options


def compared(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each peer and figure that both have."""
    judge = Judge(options.data)
    settings = chosen_settings(options, judge.data)
    ours = mean_of([judge.per_user(answers(run, judge), SPLIT) for run in options.run])
    found = []
    with given(judge, options.peers_python) as rows:
        for name in options.peers:
            print(f"fitting {name} ...", file=sys.stderr)
            scores, _ = run_peer(name, settings[name], 0, rows)
            theirs = judge.per_user(answers_of(scores), SPLIT)
            found += [{"peer": PEERS[name].title, **row} for row in differences(ours, theirs)]
    return found


def chosen_settings(options: argparse.Namespace, data: str) -> dict[str, dict[str, Any]]:
    """By peer, as the rows of these data have them. Raises ConfigError without such rows."""
    rows = [row for row in finished.read(options.chosen) if row.data == data]
    settings = {row.peer: json.loads(row.settings) for row in finished.tested(rows)}
    for name in options.peers:
        if name not in settings:
            raise ConfigError(
                f"--chosen {options.chosen} must have a test row of {name} on {data}, the data of "
                f"--data, got none; make it with benchmarks.accuracy --peers {name}"
            )
    return settings


def answers(run: Path, judge: Judge) -> Answers:
    """Of a model that was trained on these data; raises DataError for another one."""
    artifact = load_artifact(run)
    if artifact.schema != judge.schema:
        raise DataError(f"{run} was trained on other data than {judge.folder}; name a run on them")
    predictor = Predictor(artifact)
    return Answers(
        watch=lambda user_U: predictor.catalogue_logits(user_U, judge.watch),
        rating=lambda user_N, item_N: predictor.pair_logits(user_N, item_N)[:, judge.rating],
    )


def mean_of(runs: Sequence[Figures]) -> Figures:
    """Each user's mean over runs on the same rows, so of the same weight."""
    first = runs[0]
    values = {name: torch.stack([run[name].value for run in runs]).mean(0) for name in first}
    return {name: PerUser(value_U, first[name].weight) for name, value_U in values.items()}


def differences(ours: Mapping[str, PerUser], theirs: Mapping[str, PerUser]) -> list[dict[str, Any]]:
    """Ours less theirs, of figures that both have: the means, their difference, its interval."""
    both = [name for name in ours if name in theirs]
    less = {
        name: PerUser(ours[name].value - theirs[name].value, ours[name].weight) for name in both
    }
    mean, interval = means(less), bootstrap(less)
    our_mean, their_mean = means(ours), means(theirs)
    return [
        {
            **{"figure": name, "title": TITLES[name], "difference": mean[name]},
            **{"ours": our_mean[name], "theirs": their_mean[name]},
            **dict(zip(("low", "high"), interval[name], strict=True)),
        }
        for name in both
    ]


if __name__ == "__main__":
    main()
