"""Accuracy of other people's recommenders on the rows of a prepared folder, beside ours.

    python -m research.accuracy --data data/ml-100k --out build/accuracy/ml-100k --seeds 3
    python -m research.accuracy --data data/ml-100k --out ... --peers popularity,ease

Each peer is tried with its settings on the validation split (seed 0); the best one is fitted anew
per seed and read on the test split once. Finished rows stay in FOLDER/rows.csv, and the same
command goes on from there. Where trials are too dear, --chosen-on takes what those of other data
chose, and the table says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common
from recsys_moe.errors import ConfigError, DataError
from research.accuracy import finished, fitting, table
from research.accuracy.finished import Row, chosen, settings_text
from research.accuracy.fitting import PEERS_PYTHON, Given, PeerError, given, run_peer
from research.accuracy.judge import Judge
from research.accuracy.ours import our_row, run_text
from research.accuracy.peers import PEERS


class Session(NamedTuple):
    """What all fits of a call share."""

    judge: Judge
    given: Given
    csv: Path
    facts: dict[str, Any]
    """`data`, `commit` and `date` of new rows."""
    elsewhere: list[Row]
    """Rows of other data whose trials choose for these; empty where each peer is tried here."""


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        judge = Judge(options.data)
        with given(judge, options.peers_python) as rows:
            csv, elsewhere = options.out / "rows.csv", options.elsewhere
            left_out = measure(options, Session(judge, rows, csv, facts(judge), elsewhere))
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(3 if isinstance(error, DataError) else 2)
    sys.exit(1 if left_out else 0)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("research.accuracy", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="a prepared folder")
    parser.add_argument("--out", type=Path, required=True, help="for rows.csv and table.md")
    parser.add_argument("--peers", default=",".join(PEERS), help="of %(default)s")
    parser.add_argument("--seeds", type=int, default=1, help="of those where a seed matters")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=RUN", help="ours")
    parser.add_argument(
        "--chosen-on",
        type=Path,
        metavar="ROWS.csv",
        help="rows of other data: their trials choose the settings, and none are made here",
    )
    parser.add_argument("--peers-python", type=Path, default=PEERS_PYTHON)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table there too")
    options = parser.parse_args(argv)
    options.peers = [name for name in options.peers.split(",") if name]
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        parser.error(f"--peers must be of {', '.join(PEERS)}, got {unknown[0]!r}")
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {options.seeds}")
    if any("=" not in model for model in options.model):
        parser.error(f"--model must be NAME=RUN, got {options.model[-1]!r}")
    options.elsewhere = finished.read(options.chosen_on) if options.chosen_on else []
    untried = [name for name in options.peers if not finished.trials(options.elsewhere, name)]
    if options.chosen_on and untried:
        parser.error(
            f"--chosen-on must hold trials of {untried[0]}, and {options.chosen_on} has none"
        )
    if wrong := fitting.missing(options.peers, options.peers_python):
        parser.error(wrong)
    return options


def measure(options: argparse.Namespace, session: Session) -> list[str]:
    """Fill in what is missing and write the table. Names of the peers that could not be fitted."""
    for model in options.model:
        beside(model, session)
    left_out = []
    for name in options.peers:
        try:
            through(name, options.seeds, session)
        except PeerError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            left_out.append(name)
    text = table.markdown(mine(session))
    (options.out / "table.md").write_text(text, encoding="utf-8")
    if options.write:
        table.fill(options.write, text)
    print(text, end="")
    return left_out


def facts(judge: Judge) -> dict[str, Any]:
    date = datetime.date.today().isoformat()
    return {"data": judge.data, "commit": common.commit(), "date": date}


def mine(session: Session) -> list[Row]:
    """The finished rows of these data."""
    return [row for row in finished.read(session.csv) if row.data == session.facts["data"]]


def beside(model: str, session: Session) -> None:
    """NAME=RUN as a row, unless it is there."""
    name, _, path = model.partition("=")
    run = Path(path)
    if not any((row.peer, row.settings) == (name, run_text(run)) for row in mine(session)):
        finished.add(session.csv, our_row(name, run, session.judge, session.facts))


def through(name: str, seeds: int, session: Session) -> None:
    """All rows of a peer: its trials, then the best of them on the test split."""
    peer = PEERS[name]
    trials = finished.trials(session.elsewhere, name) or [
        fitted(name, settings, 0, "val", session) for settings in peer.settings
    ]
    best = chosen(trials, peer)
    for seed in range(seeds if peer.random else 1):
        fitted(name, json.loads(best.settings), seed, "test", session)


def fitted(name: str, settings: dict[str, Any], seed: int, split: str, session: Session) -> Row:
    """The finished row of these settings, fitted now where there is none. Raises PeerError."""
    key = (name, split, str(seed), settings_text(settings), session.facts["data"])
    for before in mine(session):
        if before.key == key:
            return before
    scores, found = run_peer(name, settings, seed, session.given)
    figures = session.judge.figures(scores, split, probabilities=PEERS[name].probabilities)
    row = Row(name, split, seed, settings_text(settings), figures, **found, **session.facts)
    finished.add(session.csv, row)
    told = {figure: round(value, 4) for figure, value in figures.items() if value is not None}
    print(f"{name} {settings} seed {seed} {split}: {told}", file=sys.stderr)
    return row


if __name__ == "__main__":
    main()
