"""What `prepare movielens` takes for as many ratings as MovieLens-25M has: seconds and memory.

    python benchmarks/preparing.py [--rows N] [--rounds N] [--clock wall|cpu]

Made-up ratings in the files of that release: users of 154 ratings on average, a long tail of
59,047 movies, no pair twice. With fewer rows than 25,000,095 there are fewer users, and the seconds
are those of all rows at the same rate, which the table says; the memory is that of fewer rows.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

ROWS, MOVIES, PER_USER = 25_000_095, 59_047, 154
SECONDS, MB = 60, 4000


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=1)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--folder", type=Path, help="measure this very process on these files")
    options = common.parse(parser, argv)
    if options.quick:
        options.rows = min(options.rows, 100_000)
    if options.folder:
        print(json.dumps(measure(options.folder, options.clock)))
        return
    if not common.has_peaks("preparing"):
        return
    with tempfile.TemporaryDirectory(prefix="preparing-") as scratch:
        make(Path(scratch) / "ml-25m", options.rows)
        words = [__file__, "--clock", options.clock, "--folder", scratch]
        show([common.measured("preparing", words) for _ in range(options.rounds)], options)


def make(folder: Path, rows: int) -> None:
    """`rows` different pairs, sorted by user as in the release."""
    folder.mkdir(parents=True)
    rng, users = np.random.default_rng(0), max(1, rows // PER_USER)
    keys = np.empty(0, dtype=np.int64)
    while len(keys) < rows:
        user = rng.integers(0, users, rows // 2 + 100)
        movie = (MOVIES * rng.random(len(user)) ** 3).astype(np.int64)
        keys = np.union1d(keys, user * MOVIES + movie)
    keys = np.delete(keys, rng.choice(len(keys), len(keys) - rows, replace=False))
    columns = {
        "userId": keys // MOVIES + 1,
        "movieId": keys % MOVIES + 1,
        "rating": rng.integers(1, 11, rows) / 2,
        "timestamp": rng.integers(800_000_000, 1_500_000_000, rows),
    }
    pacsv.write_csv(pa.table(columns), folder / "ratings.csv")
    movies = (f"{n},Movie {n} ({1950 + n % 70}),Drama" for n in range(1, MOVIES + 1))
    (folder / "movies.csv").write_text("\n".join(["movieId,title,genres", *movies, ""]))


def measure(folder: Path, clock: str) -> dict[str, float]:
    """Of this process, from the files on."""
    from data_prep import movielens

    now = common.CLOCKS[clock]
    start = now()
    out = folder / "data"
    schema = movielens.prepare("25m", folder / "ml-25m", out, partial=True, force=True)
    seconds, mb = now() - start, common.resident("VmHWM")
    return {"seconds": seconds, "mb": mb, "prepared": sum(schema.rows.values())}


def show(found: list[dict[str, Any]], options: Any) -> None:
    whole = ROWS / options.rows
    seconds = common.spread([one["seconds"] * whole for one in found])
    mb = max(one["mb"] for one in found)
    how = "" if options.rows == ROWS else f" (of {options.rows:,} rows, seconds times {whole:.3g})"
    columns = {"rows": "{rows:,}", "s for 25 M rows": "{seconds:.1f}", "peak MB": "{mb:,.0f}"}
    common.table(columns, [{"rows": options.rows, "seconds": seconds, "mb": mb}])
    targets = [common.target(f"prepare of 25 M rows{how}", seconds.median, SECONDS, " s")]
    if options.rows == ROWS:
        targets.append(common.target("peak of prepare of 25 M rows", mb, MB, " MB"))
    common.report("preparing", {"rows": options.rows, "seconds": seconds, "mb": mb}, targets)


if __name__ == "__main__":
    main()
