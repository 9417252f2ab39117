"""Data larger than memory: peak memory and rows per second of preparing, reading and training.

    python benchmarks/streaming.py [--rows N] [--folder DIR]

Made-up rows go to Parquet parts; then, each in a fresh process, `prepare table --engine stream`,
and one epoch of `fit` with a small model, streamed and in memory. The peak is VmHWM of Linux,
beyond what the process held after its imports. 2 x 10^7 rows take about 15 minutes on one core and
2 GB of disk.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

USERS, ITEMS = 200_000, 50_000
ROWS_PER_PART = 1_000_000
PREPARE_MB, FIT_MB, BATCH = 256, 48, 8192
MODEL = {"embedding_dim": 16, "num_experts": 4, "expert_dim": 16, "tower_dims": [8], "dropout": 0}
STAGES = ("prepare", "fit streamed", "fit in memory")


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=1, clock=False)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--folder", type=Path, help="keep the data here (default: nowhere)")
    parser.add_argument("--stage", choices=STAGES, help="measure this very process")
    options = common.parse(parser, argv)
    if options.stage:
        print(json.dumps(measure(options.stage, options.folder)))
        return
    if not common.has_peaks("streaming"):
        return
    with tempfile.TemporaryDirectory(prefix="streaming-") as scratch:
        folder = options.folder or Path(scratch)
        make(folder / "raw", min(options.rows, 200_000) if options.quick else options.rows)
        words = [__file__, "--folder", folder, "--stage"]
        show({
            stage: common.measured(stage, [*words, stage], OMP_NUM_THREADS="1") for stage in STAGES
        })  # fmt: skip


def make(folder: Path, rows: int) -> None:
    """Long-tailed users and items, one part after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, start in enumerate(range(0, rows, ROWS_PER_PART)):
        rng, size = np.random.default_rng(part), min(ROWS_PER_PART, rows - start)
        clicked = rng.integers(0, 2, size).astype(np.float32)
        stars = rng.integers(1, 6, size).astype(np.float32)
        columns = {
            "user": pa.array((USERS * rng.random(size) ** 1.5).astype(np.int64)),
            "item": pa.array((ITEMS * rng.random(size) ** 2).astype(np.int64)),
            "clicked": pa.array(clicked),
            "stars": pa.array(stars, mask=clicked == 0),
        }
        pq.write_table(pa.table(columns), folder / f"part-{part:05d}.parquet")


def measure(stage: str, folder: Path) -> dict[str, float]:
    """Rows, seconds, and megabytes beyond the imports at the peak."""
    from data_prep import table
    from recsys_moe.train.fit import fit

    libraries, start = common.resident("VmRSS"), time.perf_counter()
    if stage == "prepare":
        rows = prepare(table, folder)
    else:
        rows = train(fit, folder, FIT_MB if stage == "fit streamed" else 4096)
    found = {"rows": rows, "seconds": time.perf_counter() - start}
    found["mb"] = common.resident("VmHWM") - libraries
    return found


def prepare(table: Any, folder: Path) -> int:
    schema = table.prepare(
        folder / "data",
        input=folder / "raw",
        user="user",
        item="item",
        tasks=["watch:binary=clicked", "rating:regression=stars"],
        duplicates="first",
        protocol="hash",
        engine="stream",
        max_memory_mb=PREPARE_MB,
        force=True,
    )
    return sum(schema.rows.values()) + schema.report["dropped_repeats"]


def train(fit: Any, folder: Path, megabytes: int) -> int:
    from recsys_moe.config.settings import parse_config
    from recsys_moe.schema import Schema

    trainer = {"max_epochs": 1, "batch_size": BATCH}
    data = {"max_memory_mb": megabytes}
    config = parse_config({"model": MODEL, "trainer": trainer, "data": data})
    fit(config, folder / "data", folder / f"run-{megabytes}", overwrite=True)
    return Schema.load(folder / "data").rows["train"]


def show(found: dict[str, dict[str, Any]]) -> None:
    columns = {"stage": "{name}", "rows": "{rows:,}", "rows/s": "{rate:,.0f}"}
    rows = [{**row, "rate": row["rows"] / row["seconds"]} for row in common.named(found)]
    common.table({**columns, "peak MB beyond the libraries": "{mb:.0f}"}, rows)
    saved = found["fit streamed"]["mb"] / found["fit in memory"]["mb"]
    targets = [
        common.target("peak of prepare", found["prepare"]["mb"], PREPARE_MB, " MB"),
        common.target("peak of fit, streamed / in memory", saved, 1),
    ]
    common.report("streaming", {"stages": found}, targets)


if __name__ == "__main__":
    main()
