"""Memory peak of `fit` beyond the loaded libraries.

    python benchmarks/memory.py [--data DIR] [--epochs N]

A fresh process imports what `fit` imports, notes its resident memory, and trains the paper's model
for whole epochs, validation, checkpoints and artifact included. The peak (VmHWM of Linux) is read
at the end of each stage. Without --data the rows are made up in MovieLens-1M's size.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import shape
from common import resident

STAGES = {
    "libraries": "libraries, as imported",
    "start": "data read, model built",
    "training": "training",
    "validation": "validation",
    "fit": "checkpoints, evaluation, artifact",
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=1, clock=False)
    parser.add_argument("--data", type=Path, help="prepared folder of MovieLens-1M")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--ratings", type=int, default=shape.RATINGS, help="of the made-up rows")
    parser.add_argument("--measure", type=Path, metavar="RUN", help="measure this very process")
    options = common.parse(parser, argv)
    if options.measure:
        print(json.dumps(measure(options.data, options.measure, options.epochs)))
        return
    if not common.has_peaks("memory"):
        return
    ratings = 60_000 if options.quick else options.ratings
    with tempfile.TemporaryDirectory(prefix="memory-") as scratch:
        data = options.data or shape.make_data(Path(scratch) / "data", ratings)
        words = [__file__, "--data", data, "--epochs", options.epochs, "--measure"]
        outs = [Path(scratch) / f"run{i}" for i in range(options.rounds)]
        show([common.measured("fit", [*words, out]) for out in outs])


def measure(data: Path, out: Path, epochs: int) -> dict[str, float]:
    """MB after each stage: resident after the imports, then peaks."""
    from lightning.pytorch.callbacks import LambdaCallback
    from watching import watched_by

    from recsys_moe.config.settings import parse_config
    from recsys_moe.train.fit import fit

    stages = {"libraries": resident("VmRSS")}
    watcher = LambdaCallback(
        on_train_start=lambda *_: stages.update(start=resident("VmHWM")),
        on_validation_start=lambda *_: stages.setdefault("training", resident("VmHWM")),
        on_validation_end=lambda *_: stages.update(validation=resident("VmHWM")),
    )
    with watched_by(watcher):
        fit(parse_config({"trainer": {"max_epochs": epochs}}), data, out)
    return stages | {"fit": resident("VmHWM")}


def show(runs: list[dict[str, Any]]) -> None:
    found = {stage: common.spread([run[stage] for run in runs]).median for stage in STAGES}
    base = found["libraries"]
    columns = {"peak until the end of": "{text}", "MB": "{mb:.0f}"}
    rows = [{"text": STAGES[at], "mb": mb, "beyond": mb - base} for at, mb in found.items()]
    common.table({**columns, "MB beyond the libraries": "{beyond:.0f}"}, rows)
    beyond = found["fit"] - base
    targets = [common.target("peak of fit beyond the libraries", beyond, 400, " MB")]
    common.report("memory", {"mb": found, "beyond_mb": beyond, "runs": runs}, targets)


if __name__ == "__main__":
    main()
