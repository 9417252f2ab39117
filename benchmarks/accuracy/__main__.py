"""Accuracy of other people's recommenders on the rows of a prepared folder, beside ours.

    python -m benchmarks.accuracy --data data/ml-100k --out build/accuracy/ml-100k --seeds 3
    python -m benchmarks.accuracy --data data/ml-100k --out ... --peers popularity,ease

Each peer is tried with its settings on the validation split (seed 0); the best one is fitted anew
per seed and read on the test split once. Finished rows stay in FOLDER/rows.csv, and the same
command goes on from there. Where trials are too dear, --chosen-on takes what those of other data
chose, and the table says so.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import common
from benchmarks.accuracy import finished, rows, table
from benchmarks.accuracy.finished import Row, chosen, settings_text
from benchmarks.accuracy.judge import Judge
from benchmarks.accuracy.ours import our_row, run_text
from benchmarks.accuracy.peers import PEERS, Peer
from recsys_moe.errors import ConfigError, DataError

PEERS_PYTHON = common.ROOT / "build" / "accuracy-venv" / "bin" / "python"
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


class PeerError(Exception):
    """A peer that could not be fitted; one line."""


class Sitting(NamedTuple):
    """What all fits of a call share."""

    judge: Judge
    rows_file: Path
    """The training rows, for other processes."""
    csv: Path
    facts: dict[str, Any]
    """`data`, `commit` and `date` of new rows."""
    python: Path
    elsewhere: list[Row]
    """Rows of other data whose trials choose for these; empty where each peer is tried here."""


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            left_out = measure(options, Path(scratch))
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(3 if isinstance(error, DataError) else 2)
    sys.exit(1 if left_out else 0)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks.accuracy", description=__doc__.partition("\n")[0])
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
    if any("=" not in given for given in options.model):
        parser.error(f"--model must be NAME=RUN, got {options.model[-1]!r}")
    options.elsewhere = finished.read(options.chosen_on) if options.chosen_on else []
    untried = [name for name in options.peers if not finished.trials(options.elsewhere, name)]
    if options.chosen_on and untried:
        parser.error(
            f"--chosen-on must hold trials of {untried[0]}, and {options.chosen_on} has none"
        )
    foreign = [name for name in options.peers if PEERS[name].foreign]
    if foreign and not options.peers_python.is_file():
        parser.error(
            f"{foreign[0]} needs the environment of the peers, and {options.peers_python} is not "
            "there: run make accuracy-venv, or name another --peers-python or other --peers"
        )
    return options


def measure(options: argparse.Namespace, scratch: Path) -> list[str]:
    """Fill in what is missing and write the table. Names of the peers that could not be fitted."""
    judge, csv = Judge(options.data), options.out / "rows.csv"
    python = options.peers_python
    sitting = Sitting(judge, scratch / "rows.npz", csv, facts(judge), python, options.elsewhere)
    rows.write(sitting.rows_file, judge.training_rows())
    for given in options.model:
        beside(given, sitting)
    left_out = []
    for name in options.peers:
        try:
            through(name, options.seeds, sitting)
        except PeerError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            left_out.append(name)
    text = table.markdown(mine(sitting))
    (options.out / "table.md").write_text(text, encoding="utf-8")
    if options.write:
        table.fill(options.write, text)
    print(text, end="")
    return left_out


def facts(judge: Judge) -> dict[str, Any]:
    schema = (judge.folder / "schema.json").read_bytes()
    return {
        "data": f"{judge.schema.name} {hashlib.sha256(schema).hexdigest()[:12]}",
        "commit": common.commit(),
        "date": datetime.date.today().isoformat(),
    }


def mine(sitting: Sitting) -> list[Row]:
    """The finished rows of these data."""
    return [row for row in finished.read(sitting.csv) if row.data == sitting.facts["data"]]


def beside(given: str, sitting: Sitting) -> None:
    """NAME=RUN as a row, unless it is there."""
    name, _, path = given.partition("=")
    run = Path(path)
    if not any((row.peer, row.settings) == (name, run_text(run)) for row in mine(sitting)):
        finished.add(sitting.csv, our_row(name, run, sitting.judge, sitting.facts))


def through(name: str, seeds: int, sitting: Sitting) -> None:
    """All rows of a peer: its trials, then the best of them on the test split."""
    peer = PEERS[name]
    trials = finished.trials(sitting.elsewhere, name) or [
        fitted(name, settings, 0, "val", sitting) for settings in peer.settings
    ]
    best = chosen(trials, peer)
    for seed in range(seeds if peer.random else 1):
        fitted(name, json.loads(best.settings), seed, "test", sitting)


def fitted(name: str, settings: dict[str, Any], seed: int, split: str, sitting: Sitting) -> Row:
    """The finished row of these settings, fitted now where there is none. Raises PeerError."""
    key = (name, split, str(seed), settings_text(settings), sitting.facts["data"])
    for before in mine(sitting):
        if before.key == key:
            return before
    peer, out = PEERS[name], sitting.rows_file.with_name("scores.npz")
    order = {"fit": peer.fit, "settings": settings, "seed": seed, "packages": peer.packages}
    found = run_peer(order | {"rows": str(sitting.rows_file), "out": str(out)}, peer, sitting)
    with np.load(out) as file:
        scores = rows.Scores(**dict(file))
    figures = sitting.judge.figures(scores, split, probabilities=peer.probabilities)
    row = Row(name, split, seed, settings_text(settings), figures, **found, **sitting.facts)
    finished.add(sitting.csv, row)
    told = {figure: round(value, 4) for figure, value in figures.items() if value is not None}
    print(f"{name} {settings} seed {seed} {split}: {told}", file=sys.stderr)
    return row


def run_peer(order: dict[str, Any], peer: Peer, sitting: Sitting) -> dict[str, Any]:
    """`minutes` and `versions` of a fit in a process of its own."""
    python = sitting.python if peer.foreign else Path(sys.executable)
    run = subprocess.run(
        [str(python), "-m", "benchmarks.accuracy.run_peer", json.dumps(order)],
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(common.ROOT)},
        cwd=common.ROOT,
        capture_output=True,
        text=True,
    )
    if run.returncode != 0:
        raise PeerError((run.stderr.strip() or f"exit code {run.returncode}").splitlines()[-1])
    return dict(json.loads(run.stdout.strip().rpartition("\n")[2]))


if __name__ == "__main__":
    main()
