"""Kill `fit` with SIGKILL at random moments of its life, resume it, and compare the results.

A run is started with `--resume auto`, killed, started again in the same way, perhaps killed again,
until it finishes; its weights, metrics.csv and evaluation must then be those of a run that nobody
killed, byte by byte. Most children are forked from a process that has imported everything and run
nothing; `--commands` of the kills hit real processes, imports included.

    python tests/crash/kills.py --kills 92 --commands 8
    python tests/crash/kills.py --kills 0 --commands 8 --set trainer.devices=2 --workers 0.5

Prints a line per run, and as the last line a JSON object; exit code 1 when a result differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a forked child inherits no threads

from tests.crash.children import SECONDS, Child, finish

RESULTS = ("model/weights.safetensors", "metrics.csv", "evaluation/val.json")
SETTINGS = (
    *("model.embedding_dim=8", "model.expert_dim=16", "model.tower_dims=[8]"),
    *("model.num_experts=4", "trainer.batch_size=32", "data.eval_batch_size=128"),
    # Stops early, after the third epoch: the first is the best, and two more are waited for.
    *("trainer.max_epochs=9", "trainer.patience=2", "trainer.min_delta=1000000"),
    "trainer.checkpoint_every_n_steps=7",
)


def arguments(data: Path, out: Path, settings: Sequence[str] = ()) -> list[str]:
    sets = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    return ["fit", "--data", str(data), "--out", str(out), "--resume", "auto", *sets]


@dataclass
class How:
    """Processes are started, and whom a kill hits."""

    forked: bool
    workers: float
    """Share of the kills that hit a process which the run has started, where there is one."""
    life: float = 0.0
    """Seconds that the last run without a kill took; on a busy machine that changes."""


def end_with_its_worker(child: Child, log: Path) -> None:
    """A run that has lost a worker must end by itself, and say so in its last line."""
    code = child.wait(SECONDS)
    if code is None:
        child.kill()
    last = log.read_text().splitlines()[-1]
    if code in (None, 0) or not last.startswith("error: "):
        sys.exit(f"without its worker a run ended with {code}, saying {last!r}")


def stage(out: Path) -> str:
    """How far a run had come when it was killed."""
    if (out / "model").is_dir():
        return "artifact written"
    if any((out / "checkpoints").glob("*.part")):
        return "while a checkpoint was written"
    if not any((out / "checkpoints").glob("*.ckpt")):
        return "before the first checkpoint"
    rows = (out / "metrics.csv").read_text().count("\n") if (out / "metrics.csv").exists() else 0
    return "after the last epoch" if rows == 4 else f"epoch {max(rows, 1)}"


def one_run(words: list[str], out: Path, most: int, draw: random.Random, how: How) -> list[str]:
    """Run to the end through at most `most` kills. Where each of them hit."""
    log, hits = out.with_suffix(".log"), []
    for again in range(most):
        begun, child = time.monotonic(), Child(words, log, how.forked)
        if child.wait(draw.uniform(0, how.life)) is not None:
            how.life = how.life if hits else time.monotonic() - begun
            break
        if draw.random() < how.workers and child.kill_a_worker(draw):
            end_with_its_worker(child, log)
        else:
            child.kill()
        hits.append(stage(out))
        if again + 1 < most and draw.random() < 0.5:
            break
    finish(Child(words, log, how.forked), log)
    return hits


def survey(folder: Path, kills: int, how: How, seed: int, settings: Sequence[str]) -> Counter[str]:
    """As many kills, over as many runs as that takes. Exits when a result differs."""
    draw, hits, runs = random.Random(seed), Counter[str](), 0
    kind = "forked" if how.forked else "command"
    straight = folder / f"straight-{kind}"
    begun = time.monotonic()
    log = straight.with_suffix(".log")
    finish(Child(arguments(folder / "data", straight, settings), log, how.forked), log)
    how.life = time.monotonic() - begun
    while hits.total() < kills:
        out, runs = folder / f"{kind}-{runs}", runs + 1
        words = arguments(folder / "data", out, settings)
        most = min(3, kills - hits.total())
        hit = one_run(words, out, most, draw, how)
        hits.update(hit)
        for name in RESULTS:
            if (out / name).read_bytes() != (straight / name).read_bytes():
                sys.exit(f"{out.name}, killed at {hit}: {name} differs from the run in one piece")
        print(f"{out.name}: equal after {hit}", flush=True)
    print(f"{hits.total()} kills in {runs} runs of {how.life:.1f} s ({kind}): all ended equal")
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=92, help="of forked runs")
    parser.add_argument("--commands", type=int, default=8, help="of real processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=float, default=0.0, help="share of kills that hit one")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as of fit")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = ["--users", "60", "--items", "40", "--interactions", "1000"]
        words = ["prepare", "synthetic", "--out", str(folder / "data"), *sizes]
        finish(Child(words, folder / "data.log", forked=True), folder / "data.log")
        for module in ("pandas", "torch.utils.tensorboard", "recsys_moe.train.fit"):
            importlib.import_module(module)  # once, and not in every forked child
        hits = Counter[str]()
        for kills, forked in ((asked.kills, True), (asked.commands, False)):
            if kills:
                how = How(forked, asked.workers)
                hits += survey(folder, kills, how, asked.seed, asked.set)
    print(json.dumps({"kills": hits.total(), "hits": dict(sorted(hits.items()))}))


if __name__ == "__main__":
    main()
