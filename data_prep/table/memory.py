"""`prepare table` with all rows in memory: any protocol, and files that are split already."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from data_prep import ids
from data_prep.ids import Ints
from data_prep.read.bad_rows import BadRows
from data_prep.rows import Prepared, Raw
from data_prep.split import protocols
from data_prep.table import columns as table_columns
from data_prep.table import entities, times
from data_prep.table import files as table_files
from data_prep.table.columns import Rows
from data_prep.table.frame import Place
from data_prep.table.spec import Request
from data_prep.table.spelling import warned
from recsys_moe.schema import DataError


def prepare_rows(places: Sequence[Place], request: Request, *, presplit: bool) -> Prepared:
    """The rows of the files at `places`; `presplit`: each place is a split, in their order.

    Raises DataError for a file or a cell that cannot be used.
    """
    bad = BadRows(request.skip_bad_rows)
    parts = [
        [
            table_columns.rows(file, request, bad)
            for file in table_files.read(place, request.columns, bad, request.encoding)
        ]
        for place in places
    ]
    sizes = [sum(len(piece.place) for piece in part) for part in parts]
    pieces = [piece for part in parts for piece in part]
    raw, kept = _distinct(_raw(pieces, places, request, bad), pieces, request)
    return protocols.prepare_rows(
        raw,
        protocol=request.protocol,
        seed=request.seed,
        command=request.command,
        to_draw=request.to_draw,
        holdout=request.holdout,
        given=np.repeat(np.arange(len(parts), dtype=np.int8), sizes)[kept] if presplit else None,
        repeats=request.duplicates == "keep",
    )


def _raw(pieces: list[Rows], places: Sequence[Place], request: Request, bad: BadRows) -> Raw:
    rows = pa.concat_tables([piece.rows for piece in pieces])
    report = bad.report(len(rows))
    if len(rows) == 0:
        raise DataError(f"{pieces[0].file.label}: has no rows")
    rows, tasks = table_columns.with_classes(rows, [task for task, _ in request.tasks])
    nanoseconds = table_columns.NANOSECONDS
    users, items = warned((piece.spelled for piece in pieces), request)
    times.report(bad.notes, request, len(rows))
    return Raw(
        name="table",
        user=ids.typed(rows["user"], are_whole=not users.texts.cells),
        item=ids.typed(rows["item"], are_whole=not items.texts.cells),
        **table_columns.values_of(rows),
        nanoseconds=rows[nanoseconds].to_numpy() if nanoseconds in rows.column_names else None,
        tasks=tasks,
        file=pieces[0].file.label if len(pieces) == 1 else "the files",
        report=report,
        users=entities.of_users(request),
        items=entities.of_items(request),
        features=request.features,
        sources=table_files.sources(*places, *request.side_files),
    )


def _distinct(raw: Raw, pieces: list[Rows], request: Request) -> tuple[Raw, Ints]:
    """`raw` with one row per pair, or as it is with `keep`; and which rows these are."""
    (user, _), (item, item_ids) = ids.encode(raw.user), ids.encode(raw.item)
    pairs = ids.pair_keys(user, item, len(item_ids))

    def repeated(row: int) -> str:
        more = len(pairs) - len(ids.sorted_distinct(pairs))
        return (
            f"{_place(pieces, row)}: user {raw.user[row].as_py()!r} and item "
            f"{raw.item[row].as_py()!r} already have a row; {more} repeated rows"
        )

    rows = request.distinct(pairs, repeated)
    if request.duplicates == "keep":
        return raw, rows
    return raw.take(rows, dropped_repeats=len(pairs) - len(rows)), rows


def _place(pieces: list[Rows], row: int) -> str:
    for piece in pieces:
        if row < len(piece.place):
            return piece.file.place(int(piece.place[row]))
        row -= len(piece.place)
    raise IndexError(row)
