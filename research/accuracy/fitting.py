"""Fit a peer in a process of its own, told the training rows of a prepared folder and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import common
from research.accuracy import rows
from research.accuracy.judge import Judge
from research.accuracy.peers import PEERS
from research.accuracy.rows import Scores

PEERS_PYTHON = common.ROOT / "build" / "accuracy-venv" / "bin" / "python"
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


class PeerError(Exception):
    """A peer that could not be fitted; one line."""


class Given(NamedTuple):
    """What every fit is given."""

    rows_file: Path
    """The training rows; scores are written beside them."""
    python: Path
    """Of the environment of the peers."""


@contextmanager
def given(judge: Judge, python: Path) -> Iterator[Given]:
    """For as long as the training rows lie in their file."""
    with tempfile.TemporaryDirectory() as scratch:
        rows_file = Path(scratch) / "rows.npz"
        rows.write(rows_file, judge.training_rows())
        yield Given(rows_file, python)


def missing(names: list[str], python: Path) -> str | None:
    """What is wrong where one of the peers `names` needs an environment that is not there."""
    foreign = [name for name in names if PEERS[name].foreign]
    if not foreign or python.is_file():
        return None
    return (
        f"{foreign[0]} needs the environment of the peers, and {python} is not there: run make "
        "accuracy-venv, or name another --peers-python or other --peers"
    )


def run_peer(
    name: str, settings: dict[str, Any], seed: int, given: Given
) -> tuple[Scores, dict[str, Any]]:
    """Its scores of every pair, and `minutes` and `versions` of the fit. Raises PeerError."""
    peer, out = PEERS[name], given.rows_file.with_name("scores.npz")
    order = {"fit": peer.fit, "settings": settings, "seed": seed, "packages": peer.packages}
    order |= {"rows": str(given.rows_file), "out": str(out)}
    run = subprocess.run(
        [
            str(given.python if peer.foreign else sys.executable),
            *("-m", "research.accuracy.run_peer", json.dumps(order)),
        ],
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(common.ROOT)},
        cwd=common.ROOT,
        capture_output=True,
        text=True,
    )
    if run.returncode != 0:
        raise PeerError((run.stderr.strip() or f"exit code {run.returncode}").splitlines()[-1])
    with np.load(out) as file:
        scores = Scores(**dict(file))
    return scores, dict(json.loads(run.stdout.strip().rpartition("\n")[2]))
