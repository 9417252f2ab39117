"""The tasks of `prepare table` in pieces: what is done with a piece, a bin and a range of rows.

Each is a function of the job and of what is on disk, and of nothing another task does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather

from data_prep import ids
from data_prep.features.training import Training
from data_prep.read.bad_rows import BadRows
from data_prep.rows import UNKNOWN_TIME, Examples
from data_prep.split import hash_split, negatives, randomness
from data_prep.split.hash_split import IdHashes, Placed
from data_prep.table import columns as table_columns
from data_prep.table.files import TableFile
from data_prep.table.pieces import Piece, read_piece
from data_prep.table.spec import Request
from data_prep.table.spelling import Spelled, joined
from recsys_moe import raw_ids
from recsys_moe.schema import SPLITS

Counts = dict[str, int]
LEAST_WAITING = 1 << 22
"""Ids of pieces, repeated ones too, before they are joined: 50 to 100 MB."""
MOST_BYTES = 1 << 30
"""Of known and waiting ids before they are joined: an array of texts ends at 2 GiB."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all tasks know."""

    request: Request
    folder: Path
    """Where rows are set aside."""
    bins: int


class Seen(NamedTuple):
    """Of one piece: distinct ids as text, rows, whether any has a time, and what was left out."""

    users: pa.Array
    items: pa.Array
    rows: int
    timed: bool
    bad: BadRows
    spelled: tuple[Spelled, Spelled] = (Spelled(), Spelled())
    """The ids of users and of items."""


def set_aside(job: Job, numbered: tuple[int, Piece]) -> Seen:
    """Pass 1 for one piece."""
    number, piece = numbered
    bad = BadRows(job.request.skip_bad_rows)
    files = read_piece(piece, job.request.columns, bad, job.request.encoding)
    seen = merge(
        _set_aside(job, file, job.folder / "by-user" / f"{number:06d}-{part:06d}.arrow", bad)
        for part, file in enumerate(files)
    )
    return seen._replace(bad=bad)


def _set_aside(job: Job, file: TableFile, path: Path, bad: BadRows) -> Seen:
    _, rows, _, spelled = table_columns.rows(file, job.request, bad)
    coded = rows["user"].combine_chunks().dictionary_encode()
    hashes = randomness.of_ids(coded.dictionary)[coded.indices.to_numpy()]
    write_bins(rows, (hashes % np.uint64(job.bins)).astype(np.int64), path, job.bins)
    timed = bool((rows["timestamp"].to_numpy() != UNKNOWN_TIME).any())
    return Seen(coded.dictionary, pc.unique(rows["item"]), len(rows), timed, BadRows(), spelled)


def merge(parts: Iterable[Seen]) -> Seen:
    """Of several pieces together."""
    empty = pa.array([], pa.string())
    users, items = Distinct(empty), Distinct(empty)
    whole = Seen(empty, empty, 0, False, BadRows())
    for one in parts:
        users.add(one.users)
        items.add(one.items)
        whole = whole._replace(
            rows=whole.rows + one.rows,
            timed=whole.timed or one.timed,
            bad=whole.bad.joined(one.bad),
            spelled=joined([whole.spelled, one.spelled]),
        )
    return whole._replace(users=users.found(), items=items.found())


class Distinct:
    """Distinct texts of many arrays, in the order of their first places. Arrays wait until they
    have as many texts as are known, or `MOST_BYTES`: these are then hashed a few times, not once
    per array."""

    def __init__(self, known: pa.Array) -> None:
        self.known, self.waiting, self.bytes = known, 0, 0
        self.parts: list[pa.Array] = []

    def add(self, texts: pa.Array) -> None:
        self.parts.append(texts)
        self.waiting += len(texts)
        self.bytes += texts.nbytes
        is_large = self.known.nbytes + self.bytes > MOST_BYTES
        if is_large or self.waiting > max(len(self.known), LEAST_WAITING):
            self.found()

    def found(self) -> pa.Array:
        self.known = pc.unique(pa.concat_arrays([self.known, *self.parts]))
        self.parts, self.waiting, self.bytes = [], 0, 0
        return self.known


def save_ids(job: Job, name: str, text: pa.Array) -> pa.Array:
    """The ids in ascending order; kept with their hashes where every task finds them."""
    are_whole = pc.all(raw_ids.are_integers(text)).as_py()
    known = ids.typed(text, are_whole=are_whole)  # a text like 007 keeps all of them text
    known = known.take(pc.sort_indices(known))
    table = pa.table({"id": known.cast(pa.string()), "hash": randomness.of_ids(known)})
    job.folder.mkdir(exist_ok=True)
    feather.write_feather(table, job.folder / f"{name}.arrow")
    return known


def place_bin(job: Job, number: int) -> Counts:
    """Pass 2 for the users of one bin: what there is to report of it."""
    table = read_bin(job.folder / "by-user", number)
    if table is None or len(table) == 0:
        return {}
    users, items = (
        feather.read_table(job.folder / f"{name}.arrow").combine_chunks()
        for name in ("users", "items")
    )
    rows = Examples(
        user=_index_in_bin(table["user"], users, job.bins, number),
        item=_index(table["item"], items["id"]),
        **table_columns.values_of(table),
    )

    def repeated(row: int) -> str:
        user, item = users["id"][int(rows.user[row])], items["id"][int(rows.item[row])]
        return f"user {user.as_py()!r} and item {item.as_py()!r} have several rows"

    kept = rows.take(
        job.request.distinct(ids.pair_keys(rows.user, rows.item, len(items)), repeated)
    )
    placed = hash_split.place(
        kept,
        IdHashes(users["hash"].to_numpy(), items["hash"].to_numpy()),
        to_draw=job.request.to_draw,
        holdout=job.request.holdout,
        seed=job.request.seed,
    )
    for code, split in enumerate(SPLITS):
        _keep_placed(job, placed, code, job.folder / split / f"{number:06d}.arrow")
    counts = {"dropped_repeats": len(rows) - len(kept)}
    if job.request.to_draw is not None:
        drawn = len(placed.rows) - len(kept)
        counts |= negatives.report(job.request.to_draw, [kept], drawn)
    return counts


def _index(text: pa.ChunkedArray, known: pa.ChunkedArray) -> ids.Index:
    return np.asarray(pc.index_in(text, value_set=known).to_numpy()).astype(np.int32)


def _index_in_bin(text: pa.ChunkedArray, users: pa.Table, bins: int, number: int) -> ids.Index:
    """`_index` of users of a bin, looked up among these and not among all."""
    own = np.flatnonzero(users["hash"].to_numpy() % np.uint64(bins) == number).astype(np.int32)
    return own[_index(text, users["id"].take(pa.array(own)))]


def _keep_placed(job: Job, placed: Placed, split: int, path: Path) -> None:
    chosen = np.flatnonzero(placed.split == split)
    key = placed.key[chosen]
    rows = table_columns.table_of(placed.rows.take(chosen)).append_column("key", pa.array(key))
    ranges = ((key >> np.uint64(32)) * np.uint64(job.bins)) >> np.uint64(32)
    write_bins(rows, ranges.astype(np.int64), path, job.bins)


def training(job: Job, sizes: tuple[int, int], number: int) -> Training | None:
    """What the training rows of one range have; `sizes`: how many users and items there are."""
    table = read_bin(job.folder / SPLITS[0], number)
    if table is None:
        return None
    return Training.of(_examples(table), sizes, job.request.context)


def blocks(job: Job, split: str) -> Iterator[Examples]:
    """Pass 3: the rows of a split in their order, range by range."""
    for number in range(job.bins):
        if (table := read_bin(job.folder / split, number)) is not None:
            yield _examples(table.sort_by("key"))


def _examples(table: pa.Table) -> Examples:
    return Examples(
        user=table["user"].to_numpy(),
        item=table["item"].to_numpy(),
        **table_columns.values_of(table),
    )


def write_bins(rows: pa.Table, bin_of_row: ids.Ints, path: Path, bins: int) -> None:
    """A file with one batch per bin, so that a bin is read without the others; none for no rows."""
    if len(rows) == 0:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    order = np.argsort(bin_of_row, kind="stable")
    edges = np.searchsorted(bin_of_row[order], np.arange(bins + 1))
    ordered = rows.take(pa.array(order)).combine_chunks().to_batches()[0]
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(path), rows.schema, options=options) as file:
        for start, stop in pairwise(edges):
            file.write_batch(ordered.slice(start, stop - start))


def read_bin(folder: Path, number: int) -> pa.Table | None:
    """Bin `number` of all files of a folder, in their order; None when there is no file."""
    batches: list[pa.RecordBatch] = []
    for path in sorted(folder.glob("*.arrow")):
        with pa.OSFile(str(path)) as file:
            batches.append(pa.ipc.open_file(file).get_batch(number))
    return pa.Table.from_batches(batches).combine_chunks() if batches else None
