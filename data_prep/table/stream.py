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
import operator
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

from data_prep import ids
from data_prep.features.training import Training, encoded, unused, with_features
from data_prep.rows import Examples, Prepared
from data_prep.table import entities, times
from data_prep.table import files as table_files
from data_prep.table import tasks as table_tasks
from data_prep.table.engines import Mapper
from data_prep.table.pieces import Piece, pieces_of
from data_prep.table.spec import Request
from data_prep.table.spelling import warned
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
    pieces = pieces_of(place)
    job = Job(
        request=request,
        folder=out.resolve().parent / f".{out.name}.rows-{os.getpid()}",
        bins=_bins(sum(piece.most_rows for piece in pieces), max_memory_mb),
    )
    known_users, known_items = entities.of_users(request), entities.of_items(request)
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
            users=ids.align(known_users, "user", seen.users),
            items=ids.align(known_items, "item", seen.items),
            seeds={"negatives": request.seed, "split": request.seed},
            sources=table_files.sources(place, *request.side_files),
            command=request.command,
            report=report | _report(request, done),
            weighted=request.weight is not None,
            negatives=request.to_draw.distribution if request.to_draw else None,
        )
        blocks = {name: table_tasks.blocks(job, name) for name in SPLITS}
        if request.features:
            known = {"user": (known_users, seen.users), "item": (known_items, seen.items)}
            prepared = replace(prepared, report=prepared.report | unused(known, request.features))
            prepared, blocks = _with_features(prepared, blocks, job, mapper)
        return writer.write_blocks(prepared, blocks, out, timed=seen.timed, force=force)


def _with_features(
    prepared: Prepared, blocks: dict[str, Iterator[Examples]], job: Job, mapper: Mapper
) -> tuple[Prepared, dict[str, Iterator[Examples]]]:
    """Between passes 2 and 3, over the training rows: vocabularies and scales, applied."""
    sizes = (len(prepared.users), len(prepared.items))
    parts = mapper(partial(table_tasks.training, job, sizes), range(job.bins))
    training = reduce(operator.add, filter(None, parts), Training.none(sizes, job.request.context))
    prepared = with_features(prepared, job.request.features, training)
    context = [one for one in prepared.features if one.entity == "context"]
    return prepared, {
        name: (encoded(block, context) for block in of_split) for name, of_split in blocks.items()
    }


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


def _seen(job: Job, place: Path, pieces: list[Piece], mapper: Mapper) -> tuple[Seen, Counts]:
    """Pass 1, with users and items in the order of their indices; and what to report of it."""
    tasks = list(enumerate(pieces))
    seen = table_tasks.merge(mapper(partial(table_tasks.set_aside, job), tasks))
    report = seen.bad.report(seen.rows)
    if seen.rows == 0:
        raise DataError(f"{table_files.files_at(place)[0]}: has no rows")
    warned([seen.spelled], job.request)
    times.report(seen.bad.notes, job.request, seen.rows)
    users = table_tasks.save_ids(job, "users", seen.users)
    items = table_tasks.save_ids(job, "items", seen.items)
    log.info("%d rows of %d users and %d items", seen.rows, len(users), len(items))
    return seen._replace(users=users, items=items), report


def _report(request: Request, done: list[Counts]) -> Counts:
    names = [] if request.duplicates == "keep" else ["dropped_repeats"]
    names += ["missing_negatives"] if request.to_draw else []
    names += ["logged_negatives"] if any("logged_negatives" in counts for counts in done) else []
    return {name: sum(counts.get(name, 0) for counts in done) for name in names}
