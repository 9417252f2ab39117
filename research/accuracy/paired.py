"""Ours against others on the same users: is a difference larger than which users were asked?

    python -m research.accuracy.paired runs/a runs/b --data data/ml-100k --peers ease,myfm \\
        --chosen ROWS.csv

Seeds tell how much training varies; users vary too, and both models are read on the same ones. So
each user's figures are subtracted (means over the runs given, seeds of one configuration), and
users are drawn anew with replacement, 10,000 times: the interval of the mean difference, 95%, as
`evaluate --ranking` has it for one model. Seeds are not drawn anew. Peers are fitted anew, seed 0,
with the settings that the rows of `research.accuracy` say were chosen.
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
from recsys_moe.artifact.model_folder import Artifact, load_artifact
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.evaluation.ranking_metrics import PerUser, bootstrap, means
from recsys_moe.inference.predictor import Predictor
from research.accuracy import finished, fitting
from research.accuracy.fitting import PEERS_PYTHON, PeerError, given, run_peer
from research.accuracy.judge import Answers, Judge, answers_of
from research.accuracy.peers import PEERS

SPLIT = "test"
RESAMPLES = 10_000
"""Of users: with 1,000 the ends of an interval are known to a tenth of a difference or so."""
TITLES = {"ndcg": "NDCG@10", "mse": "rating MSE"}
Figures = dict[str, PerUser]


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    try:
        rows, left_out = compared(options)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(3 if isinstance(error, DataError) else 2)
    columns = {"": "{peer}", "figure": "{title}", "ours": "{ours:.4f}", "theirs": "{theirs:.4f}"}
    interval = {"difference": "{difference:+.4f}", "95%, over users": "{low:+.4f} to {high:+.4f}"}
    common.table({**columns, **interval}, rows)
    common.report("paired", {"rows": rows, "runs": len(options.run), "split": SPLIT})
    if left_out:
        sys.exit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "research.accuracy.paired", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("run", type=Path, nargs="+", help="of ours, seeds of one configuration")
    parser.add_argument("--data", type=Path, required=True, help="a prepared folder")
    parser.add_argument("--peers", required=True, help=f"of {', '.join(PEERS)}")
    parser.add_argument("--chosen", type=Path, required=True, metavar="ROWS.csv", help="of peers")
    parser.add_argument("--peers-python", type=Path, default=PEERS_PYTHON)
    options = parser.parse_args(argv)
    options.peers = list(dict.fromkeys(options.peers.split(",")))
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        parser.error(f"--peers must be of {', '.join(PEERS)}, got {unknown[0]!r}")
    if not options.chosen.is_file():
        parser.error(f"--chosen {options.chosen}: there is no such file")
    if wrong := fitting.missing(options.peers, options.peers_python):
        parser.error(wrong)
    return options


def compared(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each peer and figure that both have; names of peers that could not be fitted."""
    judge = Judge(options.data)
    settings = chosen_settings(options, judge.data)
    models = [load_artifact(run) for run in options.run]
    check_seeds(models)
    for run, model in zip(options.run, models, strict=True):
        check_data(run, model, judge)
    ours = mean_of([judge.per_user(answers(model, judge), SPLIT) for model in models])
    found, left_out = [], []
    with given(judge, options.peers_python) as rows:
        for name in options.peers:
            print(f"fitting {name} ...", file=sys.stderr)
            try:
                scores, _ = run_peer(name, settings[name], 0, rows)
            except PeerError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                left_out.append(name)
                continue
            theirs = judge.per_user(answers_of(scores), SPLIT)
            found += [{"peer": PEERS[name].title, **row} for row in differences(ours, theirs)]
    return found, left_out


def chosen_settings(options: argparse.Namespace, data: str) -> dict[str, dict[str, Any]]:
    """By peer, as the rows of these data have them. Raises ConfigError without such rows."""
    rows = [row for row in finished.read(options.chosen) if row.data == data]
    settings = {row.peer: json.loads(row.settings) for row in finished.tested(rows)}
    for name in options.peers:
        if name not in settings:
            raise ConfigError(
                f"--chosen {options.chosen} must have a test row of {name} on {data}, the data of "
                f"--data, got none; make it with research.accuracy --peers {name}"
            )
    return settings


def check_seeds(models: Sequence[Artifact]) -> None:
    """Raises ConfigError unless these are different seeds of one configuration."""
    configs = [model.config.model_dump(mode="json") for model in models]
    seeds = [config["trainer"].pop("seed") for config in configs]
    if len(set(seeds)) < len(seeds) or any(config != configs[0] for config in configs):
        raise ConfigError(
            f"RUN must be different seeds of one configuration, got seeds {seeds}"
            f"{'' if len(set(seeds)) < len(seeds) else ' and other settings besides'}; name others"
        )


def check_data(run: Path, artifact: Artifact, judge: Judge) -> None:
    """Raises DataError unless the run was trained on the judge's data."""
    if artifact.schema != judge.schema:
        raise DataError(
            f"RUN must be trained on --data {judge.folder}, got {run}, trained on others; name "
            "runs on them"
        )


def answers(artifact: Artifact, judge: Judge) -> Answers:
    """Of a model that was trained on the judge's data."""
    predictor = Predictor(artifact)
    return Answers(
        watch=lambda users: predictor.catalogue_logits(users.user, judge.watch),
        rating=lambda user_N, item_N: predictor.pair_logits(user_N, item_N)[
            :, predictor.columns[judge.rating]
        ],
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
    mean, interval = means(less), bootstrap(less, RESAMPLES)
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
