"""Training examples/s of `recsys-moe fit` against other people's loops and a dense twin.

    make bench-peers [PEERS_ARGS="--quick"]
    python benchmarks/peers/compare.py --contenders ours twin     # without the peers installed

Every contender trains the paper's MovieLens shape (two embeddings of 128, E experts 256 -> 256,
towers 256 -> 256 -> 1, two tasks, dropout 0.5, Adam, batch 512) on the same rows, each block in a
fresh process, the blocks of all contenders in turn. Measured is the whole loop after a warm-up. A
table for people, then one JSON line. Other work on the machine spoils it: there
`--clock cpu --threads 1` counts processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import common  # noqa: E402
from shape import BATCH, RATINGS, make_data  # noqa: E402

from recsys_moe.data.columns import StoredColumns  # noqa: E402
from recsys_moe.schema import Schema  # noqa: E402

CONTENDERS = {
    "ours": "recsys-moe fit (moesart, k=2)",
    "joint3": "the same, joint=3",
    "joint2": "the same, joint=2",
    "bf16": "the same, bf16-mixed",
    "bf16_joint3": "the same, bf16-mixed, joint=3",
    "bf16_joint2": "the same, bf16-mixed, joint=2",
    "rechub": "torch-rechub MMOE, MTLTrainer",
    "rechub_bf16": "the same under autocast to bfloat16",
    "deepctr": "DeepCTR-Torch MMOE, model.fit",
    "twin": "dense masked twin",
}
BF16 = "trainer.precision=bf16-mixed"
FORMS = {
    "joint3": ["model.router.joint=3"],
    "joint2": ["model.router.joint=2"],
    "bf16": [BF16],
    "bf16_joint3": [BF16, "model.router.joint=3"],
    "bf16_joint2": [BF16, "model.router.joint=2"],
}
"""Settings of ours in other forms. What joint choice does to the loss: research/joint.md; bf16 is
for processors that compute in it. The peers have no such setting."""
PEERS = ("rechub", "rechub_bf16", "deepctr")
GOALS = {
    experts: dict.fromkeys(("rechub", "deepctr"), goal)
    for experts, goal in ((16, 8.0), (64, 20.0), (256, 60.0))
}
GOALS[16]["twin"] = 6.0


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        scratch = Path(folder)
        data = options.data or make_data(scratch / "data", options.ratings)
        settings = {
            "data": str(data), "rows": str(scratch / "rows.npz"), "out": str(scratch / "run"),
            "full_batches": write_rows(data, scratch / "rows.npz") // options.batch_size,
            "batch_size": options.batch_size, "steps": options.steps, "seconds": options.seconds,
            "clock": options.clock,
            "warm_up_steps": min(5, options.steps), "warm_up_seconds": min(2.0, options.seconds),
        }  # fmt: skip
        blocks = [
            measure({"contender": name, "experts": experts, "round": round_ + 1}, settings, options)
            for experts in options.experts
            for round_ in range(options.rounds)
            for name in turned(options.contenders, round_)
        ]
    report(blocks, options)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.parser(__doc__, rounds=3)
    parser.add_argument("--experts", type=int, nargs="+", default=[16, 64, 256])
    usual = [name for name in CONTENDERS if name not in FORMS and name != "rechub_bf16"]
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=usual)
    parser.add_argument("--batch-size", type=int, default=BATCH)
    parser.add_argument("--data", type=Path, help="prepared folder; default: synthetic rows")
    parser.add_argument("--peers-python", type=Path, default=Path("build/peers-venv/bin/python"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="fewest seconds per block")
    parser.add_argument("--steps", type=int, default=20, help="fewest steps per block")
    parser.add_argument("--ratings", type=int, default=RATINGS, help="size of the synthetic rows")
    options = parser.parse_args(argv)
    if options.quick:
        options.experts, options.rounds, options.seconds, options.steps = [16], 1, 0.2, 5
    if set(options.contenders) & set(PEERS) and not options.peers_python.is_file():
        parser.error(f"--peers-python {options.peers_python} does not exist; run make bench-peers")
    return options


def write_rows(data: Path, path: Path) -> int:
    """The training rows of a prepared folder as arrays, for contenders without pyarrow. Counts."""
    schema = Schema.load(data)
    kinds = [task.kind for task in schema.tasks]
    if kinds != ["binary", "regression"]:
        sys.exit(f"error: --data {data} must have a binary and a regression task, has {kinds}")
    rows = StoredColumns(data, schema, "train").load()
    user, item = (index.numpy().astype(np.int64) for index in (rows.user, rows.item))
    sizes = [schema.user.size, schema.item.size]
    np.savez(path, user=user, item=item, labels=rows.labels.numpy(), sizes=sizes)
    return len(user)


def turned(contenders: list[str], round_: int) -> list[str]:
    """Each round starts with another contender, so that none always follows the same one."""
    start = round_ % len(contenders)
    return contenders[start:] + contenders[:start]


def measure(
    block: dict[str, Any], settings: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """One block: a fresh process that trains and times itself."""
    name = block["contender"]
    python = options.peers_python if name in PEERS else sys.executable
    kind = "peer" if name in PEERS else "ours" if name in FORMS else name
    script, settings = HERE / f"run_{kind}.py", {**settings, "set": FORMS.get(name, [])}
    threads = {"OMP_NUM_THREADS": str(options.threads)}
    run = subprocess.run(
        [str(python), str(script), json.dumps(settings | block)],
        env=dict(os.environ) | threads,
        capture_output=True,
        text=True,
    )
    block |= common.result_of(run, name)
    said = "E={experts} round {round} {contender} {examples_per_s:,.0f} examples/s, {steps} steps"
    print(said.format(**block), file=sys.stderr)
    return block


def report(blocks: list[dict[str, Any]], options: argparse.Namespace) -> None:
    summary = [
        entry
        for experts in options.experts
        for entry in compared([b for b in blocks if b["experts"] == experts], experts)
    ]
    columns = {
        "contender": "{contender}", "E": "{experts}", "examples/s": "{rates:,.0f}",
        "ours is, times": "{ratio}", "goal": "{goal}", "met": "{met}",
        **{f"{name} is, times": f"{{{name}}}" for name in FORMS if name in options.contenders},
    }  # fmt: skip
    common.table(columns, map(row, summary))
    rows = options.data.name if options.data else "synthetic"
    facts = {"batch": options.batch_size, "threads": options.threads, "clock": options.clock}
    common.report("peers", {**facts, "rows": rows, "summary": summary, "blocks": blocks})


def compared(blocks: list[dict[str, Any]], experts: int) -> list[dict[str, Any]]:
    """What each contender reached. Ratios are taken within a round, then their median."""
    rates: common.Times = {}
    for block in sorted(blocks, key=lambda block: block["round"]):
        rates.setdefault(block["contender"], []).append(block["examples_per_s"])
    found = []
    for name in sorted(rates, key=list(CONTENDERS).index):
        entry = {"contender": name, "experts": experts, "examples_per_s": rates[name]}
        if name != "ours" and "ours" in rates:
            entry["ratio"] = times = common.ratio(rates, "ours", name)
            entry["goal"] = goal = GOALS.get(experts, {}).get(name)
            entry["met"] = goal and times.median >= goal
        forms = [form for form in FORMS if form in rates and form != name]
        entry["forms"] = {form: common.ratio(rates, form, name) for form in forms}
        found.append(entry)
    return found


def row(entry: dict[str, Any]) -> dict[str, Any]:
    """Of the table."""
    goal = entry.get("goal")
    return {
        "contender": CONTENDERS[entry["contender"]],
        "experts": entry["experts"],
        "rates": common.spread(entry["examples_per_s"]),
        "ratio": f"{entry['ratio']:.1f}" if "ratio" in entry else "",
        "goal": f">= {goal:g}" if goal else "",
        "met": common.MET[entry["met"]] if goal else "",
        **{form: f"{entry['forms'][form]:.1f}" if form in entry["forms"] else "" for form in FORMS},
    }


if __name__ == "__main__":
    main()
