"""Memory peak of `fit` beyond the loaded libraries.

    python benchmarks/memory.py [--data DIR] [--epochs N]

A fresh process imports what `fit` imports, notes its resident memory, and trains the paper's model
for whole epochs, validation, checkpoints and artifact included. The peak (VmHWM of Linux) is read
at the end of each stage. Without --data the rows are made up in MovieLens-1M's size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import shape

FLAG = "--measure"
STAGES = {
    "libraries": "libraries, as imported",
    "start": "data read, model built",
    "training": "training",
    "validation": "validation",
    "fit": "checkpoints, evaluation, artifact",
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=1)
    parser.add_argument("--data", type=Path, help="prepared folder of MovieLens-1M")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--ratings", type=int, default=shape.RATINGS, help="of the made-up rows")
    parser.add_argument(FLAG, type=Path, metavar="RUN", help="measure this very process")
    options = common.parse(parser, argv)
    if options.measure:
        print(json.dumps(measure(options.data, options.measure, options.epochs)))
        return
    if not Path("/proc/self/status").is_file():
        skipped = "the peak is read from /proc, which this system does not have"
        print(f"memory: skipped, {skipped}")
        common.report("memory", {"skipped": skipped})
        return
    show(in_turn(options))


def in_turn(options: Any) -> list[dict[str, float]]:
    """MB of each stage in each of `--rounds` processes."""
    ratings = 60_000 if options.quick else options.ratings
    with tempfile.TemporaryDirectory(prefix="memory-") as scratch:
        data = options.data or shape.make_data(
            Path(scratch) / "data", shape.USERS, shape.ITEMS, ratings
        )
        return [
            in_process(data, Path(scratch) / f"run{i}", options.epochs)
            for i in range(options.rounds)
        ]


def in_process(data: Path, out: Path, epochs: int) -> dict[str, float]:
    settings = ["--data", str(data), FLAG, str(out), "--epochs", str(epochs)]
    command = [sys.executable, __file__, *settings]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode != 0:
        sys.exit(f"error: fit was not measured (exit {run.returncode}):\n{run.stderr[-2000:]}")
    return dict(json.loads(run.stdout.strip().rpartition("\n")[2]))


def measure(data: Path, out: Path, epochs: int) -> dict[str, float]:
    """MB after each stage: resident after the imports, then peaks."""
    from lightning.pytorch.callbacks import Callback
    from watching import watched_by

    from recsys_moe.config.settings import parse_config
    from recsys_moe.train.fit import fit

    stages = {"libraries": resident("VmRSS")}

    class Watcher(Callback):
        def on_train_start(self, *unused: Any) -> None:
            stages["start"] = resident("VmHWM")

        def on_validation_start(self, *unused: Any) -> None:
            stages.setdefault("training", resident("VmHWM"))

        def on_validation_end(self, *unused: Any) -> None:
            stages["validation"] = resident("VmHWM")

    with watched_by(Watcher()):
        fit(parse_config({"trainer": {"max_epochs": epochs}}), data, out)
    return stages | {"fit": resident("VmHWM")}


def resident(key: str) -> float:
    """MB (10**6 bytes) of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(f"{key}:"))
    return int(kilobytes) * 1024 / 1e6


def show(runs: list[dict[str, float]]) -> None:
    found = {stage: common.spread([run[stage] for run in runs]).median for stage in STAGES}
    base = found["libraries"]
    rows = [
        [text, f"{found[stage]:.0f}", f"{found[stage] - base:.0f}"]
        for stage, text in STAGES.items()
    ]
    common.table(["peak until the end of", "MB", "MB beyond the libraries"], rows)
    beyond = found["fit"] - base
    targets = [common.target("peak of fit beyond the libraries", beyond, 400, " MB")]
    common.report("memory", {"mb": found, "beyond_mb": beyond, "runs": runs}, targets)


if __name__ == "__main__":
    main()
