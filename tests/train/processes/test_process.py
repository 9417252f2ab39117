"""Settings of the process that trains: on every thread, and put back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLUSHED = """
import sys
from pathlib import Path
import torch
from recsys_moe.config.settings import parse_config
from recsys_moe.train.module import RecModule
from recsys_moe.train.fit import fit

def count(self):
    print("flushed", int((torch.full((10**6,), 1e-40) * 1.0 == 0).sum()))

RecModule.on_fit_end = count
settings = {"model": {"embedding_dim": 8, "num_experts": 4}, "trainer": {"max_epochs": 1}}
fit(parse_config(settings), Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_every_thread_of_a_fit_flushes_denormals(prepared: Path, tmp_path: Path) -> None:
    """A million elements are shared out over two threads; 1e-40 is a float32 denormal."""
    assert "flushed 1000000" in run(FLUSHED, str(prepared), str(tmp_path / "run"))


def run(code: str, *words: str) -> str:
    """What a fresh process prints."""
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


FAULTS = """
import resource
import torch
from recsys_moe.train.processes.memory import training_process

def faults(megabytes):
    for _ in range(10):  # the heap grows by a few blocks before it is large enough
        torch.zeros(megabytes * 2**18)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.zeros(megabytes * 2**18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with training_process():
    during = faults(64)
print(during, faults(4))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_large_blocks_are_kept_during_training_and_cheap_afterwards() -> None:
    """Page faults of ten blocks of 64 MB, which the default maps anew, and of 4 MB afterwards.

    A block of n MB has 256 n pages of 4 KB; a quarter of them would already be too many.
    """
    during, afterwards = map(int, run(FAULTS).split())
    assert during < 10 * 64 * 256 / 4
    assert afterwards < 10 * 4 * 256 / 4
