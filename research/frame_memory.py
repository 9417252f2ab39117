"""Peak memory of `prepare` from a DataFrame and from its Parquet file, each in its own process.

    python -m research.frame_memory --rows 10000000 --ids text --work DIR

The frame has 15 columns, of which five are read. See research/large_data.md.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

TASKS = {"click": "binary=clicked", "seconds": "regression=seconds"}
USERS, ITEMS = 200_000, 20_000


def main() -> None:
    options = parsed()
    options.work.mkdir(parents=True, exist_ok=True)
    path = options.work / f"{options.ids}.parquet"
    if options.how is not None:
        print(measured(path, options.how == "frame"))
        return
    made(options.rows, options.ids).to_parquet(path)
    for how in ("file", "frame"):
        again = [sys.executable, "-m", "research.frame_memory", *sys.argv[1:], "--how", how]
        subprocess.run(again, check=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", choices=("int", "text"), default="int")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--how", choices=("file", "frame"))
    return parser.parse_args()


def made(rows: int, ids: str) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    pair = rng.integers(0, USERS * ITEMS, rows)
    frame = pd.DataFrame({"user": pair // ITEMS, "item": pair % ITEMS})
    if ids == "text":
        frame = pd.DataFrame(
            {"user": "v" + frame.user.astype(str), "item": "p" + frame.item.astype(str)}
        )
    frame["clicked"] = rng.integers(0, 2, rows)
    frame["seconds"] = rng.random(rows)
    frame["time"] = 1_700_000_000 + rng.integers(0, 10**7, rows)
    return frame.assign(**{f"other{n}": rng.random(rows) for n in range(10)})


def measured(path: Path, from_frame: bool) -> str:
    import recsys_moe

    prepare, base, out = recsys_moe.prepare, memory("VmRSS"), path.parent / "out"
    data = pd.read_parquet(path) if from_frame else path
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    held = memory("VmRSS") - base
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    begun = time.perf_counter()
    options = {"user": "user", "item": "item", "time": "time", "duplicates": "keep"}
    prepare(data, tasks=TASKS, out=out, **options)
    seconds = time.perf_counter() - begun
    shutil.rmtree(out)
    more = memory("VmHWM") - base - held
    return f"{'frame' if from_frame else 'file'}: {more:.0f} MB more than before, {seconds:.1f} s"


def memory(name: str) -> float:
    """MB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    main()
