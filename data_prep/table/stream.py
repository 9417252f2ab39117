"""`prepare table` in bounded memory: the protocol `hash` in three passes over pieces.

1. Every piece of the input: check it, note its ids, set its rows aside by user.
2. Every bin of users: index, repeated pairs, negatives, split; set the rows aside by their order.
3. Every range of the order: sort and write.
The tasks of a pass know nothing of each other, so they run anywhere that reaches the files, and
what they hold is a piece, a bin or a range, and the ids. The result does not depend on how
many there are: it is the one of `--engine memory`, byte for byte.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from data_prep import ids
from data_prep.rows import Prepared
from data_prep.table import files as table_files
from data_prep.table import tasks as table_tasks
from data_prep.table.engines import Mapper
from data_prep.table.items import item_features
from data_prep.table.spec import Request
from data_prep.table.tasks import Counts, Job, Seen
from data_prep.write import writer
from recsys_moe.interrupts import unwinding
from recsys_moe.schema import SPLITS, ConfigError, DataError, Schema

log = logging.getLogger("recsys_moe.prepare")
ROW_BYTES = 1024
"""What a row of a bin takes at most, negatives and copies included. See benchmarks/streaming.py."""
MOST_BINS = 1024


def prepare(
    out: Path,
    place: Path,
    request: Request,
    *,
    max_memory_mb: int,
    mapper: Mapper,
    force: bool,
) -> Schema:
    """As `table.prepare`, whose arguments these are. Raises DataError and ConfigError."""
    pieces = table_files.pieces(place)
    job = Job(
        request=request,
        folder=out.resolve().parent / f".{out.name}.rows-{os.getpid()}",
        bins=_bins(sum(piece.most_rows for piece in pieces), max_memory_mb),
    )
    features = item_features(request.items, request.item)
    with unwinding(), ExitStack() as leaving:
        leaving.callback(shutil.rmtree, job.folder, ignore_errors=True)
        seen, report = _seen(job, place, pieces, mapper)
        done = list(mapper(partial(table_tasks.place_bin, job), range(job.bins)))
        prepared = Prepared(
            name="table",
            protocol="hash",
            vocabulary="all",
            tasks=tuple(task for task, _ in request.tasks),
            splits={},
            users=ids.align(None, "user", seen.users),
            items=ids.align(features, "item", seen.items),
            seeds={"negatives": request.seed, "split": request.seed},
            sources=table_files.sources(place, request.items),
            command=request.command,
            report=report | _report(request, done),
            weighted=request.weight is not None,
        )
        blocks = {name: table_tasks.blocks(job, name) for name in SPLITS}
        return writer.write_blocks(prepared, blocks, out, timed=seen.timed, force=force)


def _bins(most_rows: int, max_memory_mb: int) -> int:
    """So many that a bin fits in half the memory: the other half is for a piece and the ids."""
    needed = 2 * most_rows * ROW_BYTES
    bins = -(-needed // (max_memory_mb * 2**20))
    if bins > MOST_BINS:
        raise ConfigError(
            f"--max-memory-mb must be at least {-(-needed // (MOST_BINS * 2**20))} for up to "
            f"{most_rows} rows, got {max_memory_mb}"
        )
    return max(1, bins)


def _seen(
    job: Job, place: Path, pieces: list[table_files.Piece], mapper: Mapper
) -> tuple[Seen, Counts]:
    """Pass 1, with users and items in the order of their indices; and what to report of it."""
    tasks = list(enumerate(pieces))
    seen = table_tasks.merge(mapper(partial(table_tasks.set_aside, job), tasks))
    report = seen.bad.report(seen.rows)
    if seen.rows == 0:
        raise DataError(f"{table_files.files_at(place)[0]}: has no rows")
    users = table_tasks.save_ids(job, "users", seen.users)
    items = table_tasks.save_ids(job, "items", seen.items)
    log.info("%d rows of %d users and %d items", seen.rows, len(users), len(items))
    return seen._replace(users=users, items=items), report


def _report(request: Request, done: list[Counts]) -> Counts:
    names = [] if request.duplicates == "keep" else ["dropped_repeats"]
    names += ["missing_negatives"] if request.to_draw else []
    return {name: sum(counts.get(name, 0) for counts in done) for name in names}
