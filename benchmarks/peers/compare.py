"""Training examples/s of `recsys-moe fit` against other people's loops and a dense twin.

    make bench-peers [PEERS_ARGS="--quick"]
    python benchmarks/peers/compare.py --contenders ours,twin     # without the peers installed

Every contender trains the paper's MovieLens shape (two embeddings of 128, E experts 256 -> 256,
towers 256 -> 256 -> 1, two tasks, dropout 0.5, Adam, batch 512) on the same rows, each block in a
fresh process, the blocks of all contenders in turn. Measured is the whole loop after a warm-up. A
table for people, then one JSON line. Other work on the machine spoils it: each block waits up to
`--patience` seconds for an idle machine and tells how many CPUs others used meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

HERE = Path(__file__).parent
BATCH, RATINGS = 512, 1_000_209
CONTENDERS = {
    "ours": "recsys-moe fit (moesart, k=2)",
    "rechub": "torch-rechub MMOE, MTLTrainer",
    "deepctr": "DeepCTR-Torch MMOE, model.fit",
    "twin": "dense masked twin",
}
PEERS = ("rechub", "deepctr")
GOALS = {16: dict.fromkeys(("rechub", "deepctr", "twin"), 6.0)}
GOALS |= {64: dict.fromkeys(PEERS, 20.0), 256: dict.fromkeys(PEERS, 60.0)}
Rates = dict[str, list[float]]


def main() -> None:
    options = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        scratch = Path(folder)
        data = options.data or synthetic(scratch / "data", options.ratings)
        full_batches = write_rows(data, scratch / "rows.npz") // BATCH
        blocks = [
            measure(name, experts, round_, data, scratch, full_batches, options)
            for experts in options.experts
            for round_ in range(options.rounds)
            for name in turned(options.contenders, round_)
        ]
    report(blocks, options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=numbers, default=[16, 64, 256], metavar="16,64,256")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", type=names, default=list(CONTENDERS), metavar="A,B")
    parser.add_argument("--data", type=Path, help="prepared folder; default: synthetic rows")
    parser.add_argument("--peers-python", type=Path, default=Path("build/peers-venv/bin/python"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="fewest seconds per block")
    parser.add_argument("--steps", type=int, default=20, help="fewest steps per block")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for idleness")
    parser.add_argument("--ratings", type=int, default=RATINGS, help="size of the synthetic rows")
    parser.add_argument("--quick", action="store_true", help="does it work? E=16, one short round")
    options = parser.parse_args()
    if options.quick:
        options.experts, options.rounds, options.seconds, options.steps = [16], 1, 0.2, 5
        options.patience = 0.0
    if set(options.contenders) & set(PEERS) and not options.peers_python.is_file():
        parser.error(f"--peers-python {options.peers_python} does not exist; run make bench-peers")
    return options


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def names(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in CONTENDERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(CONTENDERS)}")
    return chosen


def synthetic(out: Path, ratings: int) -> Path:
    """Made-up rows of MovieLens-1M's size: 6,040 users, 3,706 items."""
    size = ["--users", "6040", "--items", "3706", "--interactions", str(ratings)]
    command = [sys.executable, "-m", "recsys_moe.cli", "prepare", "synthetic", "--out", str(out)]
    subprocess.run([*command, *size], check=True, stdout=sys.stderr)
    return out


def write_rows(data: Path, path: Path) -> int:
    """The training rows of a prepared folder as arrays, for contenders without pyarrow. Counts."""
    schema = json.loads((data / "schema.json").read_text(encoding="utf-8"))
    kinds = [task["kind"] for task in schema["tasks"]]
    if kinds != ["binary", "regression"]:
        sys.exit(f"error: --data {data} must have a binary and a regression task, has {kinds}")
    table = pq.read_table(data / "train")
    user, item = (table[schema[part]["column"]].to_numpy() for part in ("user", "item"))
    labels = [table[task["column"]].to_numpy() for task in schema["tasks"]]
    np.savez(
        path,
        user=user.astype(np.int64),
        item=item.astype(np.int64),
        labels=np.stack(labels, 1).astype(np.float32),
        sizes=[schema["user"]["size"], schema["item"]["size"]],
    )
    return len(user)


def turned(contenders: list[str], round_: int) -> list[str]:
    """Each round starts with another contender, so that none always follows the same one."""
    start = round_ % len(contenders)
    return contenders[start:] + contenders[:start]


def measure(
    name: str,
    experts: int,
    round_: int,
    data: Path,
    scratch: Path,
    full_batches: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """One block: a fresh process that trains and times itself."""
    settings = {
        "--data": data, "--rows": scratch / "rows.npz", "--out": scratch / "run",
        "--experts": experts, "--batch-size": BATCH, "--full-batches": full_batches,
        "--warm-up-steps": min(5, options.steps), "--warm-up-seconds": min(2.0, options.seconds),
        "--steps": options.steps, "--seconds": options.seconds,
    }  # fmt: skip
    python = options.peers_python if name in PEERS else sys.executable
    words = [str(word) for pair in settings.items() for word in pair]
    wait_for_idleness(options.patience)
    load, watch = load_average(), OtherWork()
    run = subprocess.run(
        [str(python), str(HERE / f"run_{name}.py"), *words],
        env=os.environ | {"OMP_NUM_THREADS": str(options.threads)},
        capture_output=True,
        text=True,
    )
    others = watch.cpus()
    block = result_of(run, name) | {"contender": name, "experts": experts, "round": round_ + 1}
    rate = f"{block['examples_per_s']:9,.0f} examples/s, {block['steps']} steps"
    noise = f"load {load}, others used {others} CPUs"
    print(f"E={experts} round {round_ + 1} {name:8} {rate} ({noise})", file=sys.stderr)
    return block | {"load_average": load, "cpus_of_others": others}


def result_of(run: subprocess.CompletedProcess[str], name: str) -> dict[str, Any]:
    """The last line of a contender; exits when it ended in any other way than its clock's."""
    last = run.stdout.strip().rpartition("\n")[2]
    if run.returncode != 0 or not last.startswith('{"examples_per_s"'):
        sys.exit(f"error: {name} was not measured (exit {run.returncode}):\n{run.stderr[-2000:]}")
    return dict(json.loads(last))


class OtherWork:
    """CPUs that processes other than ours and our finished children use, from /proc/stat."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.busy, self.own = self._now()

    def cpus(self) -> float | None:
        """Mean since the start; None where the system does not tell."""
        busy, own = self._now()
        if busy is None or self.busy is None:
            return None
        others = (busy - self.busy) - (own - self.own)
        return round(max(others, 0.0) / (time.perf_counter() - self.start), 2)

    @staticmethod
    def _now() -> tuple[float | None, float]:
        """CPU seconds of the whole machine (all but idle and waiting) and of ourselves."""
        own = sum(os.times()[:4])
        try:
            words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        except OSError:
            return None, own
        user, nice, system, _, _, irq, softirq, steal = map(int, words[1:9])
        ticks = user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK"), own


def wait_for_idleness(patience: float) -> None:
    """Until others use less than a tenth of a CPU for two seconds, or `patience` has run out."""
    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        watch = OtherWork()
        time.sleep(2)
        if (watch.cpus() or 0.0) < 0.1:
            return


def load_average() -> float:
    return round(os.getloadavg()[0], 2)


def report(blocks: list[dict[str, Any]], options: argparse.Namespace) -> None:
    print(f"{'':30} {'E':>4} {'examples/s':>11} {'min - max':>17} {'ours is':>9} {'min - max':>15}")
    summary = []
    for experts in options.experts:
        rates: Rates = {
            name: [b["examples_per_s"] for b in of(blocks, name, experts)]
            for name in options.contenders
        }
        summary += [line(name, experts, rates) for name in options.contenders]
    facts = {
        "benchmark": "peers", "batch": BATCH, "threads": options.threads, "cpus": os.cpu_count(),
        "torch": torch.__version__, "date": datetime.date.today().isoformat(),
        "rows": str(options.data.name if options.data else "synthetic"),
    }  # fmt: skip
    print(json.dumps({**facts, "summary": summary, "blocks": blocks}))


def of(blocks: list[dict[str, Any]], name: str, experts: int) -> list[dict[str, Any]]:
    """A contender's blocks in the order of the rounds."""
    return [b for b in blocks if b["contender"] == name and b["experts"] == experts]


def line(name: str, experts: int, rates: Rates) -> dict[str, Any]:
    """Print one line of the table. Ratios are taken within a round, then their median."""
    own = rates[name]
    shown = f"{statistics.median(own):11,.0f} {f'{min(own):,.0f} - {max(own):,.0f}':>17}"
    entry: dict[str, Any] = {"contender": name, "experts": experts, "examples_per_s": own}
    if name != "ours" and "ours" in rates:
        ratios = [a / b for a, b in zip(rates["ours"], own, strict=True)]
        middle, goal = statistics.median(ratios), GOALS.get(experts, {}).get(name)
        verdict = "" if goal is None else f"  goal {goal:g}x: {'yes' if middle >= goal else 'no'}"
        spread = f"{min(ratios):.1f}x - {max(ratios):.1f}x"
        shown += f" {f'{middle:.1f}x':>9} {spread:>15}{verdict}"
        entry |= {"ratios": ratios, "median_ratio": middle, "goal": goal}
    print(f"{CONTENDERS[name]:30} {experts:4} {shown}")
    return entry


if __name__ == "__main__":
    main()
