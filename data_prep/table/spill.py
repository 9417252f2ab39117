"""Rows set aside on disk in numbered bins, and the rows of one bin read back."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.ids import Ints

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def write_bins(rows: pa.Table, bin_of_row: Ints, path: Path, bins: int) -> None:
    """A file with one batch per bin, so that a bin is read without the others; none for no rows."""
    if len(rows) == 0:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    order = np.argsort(bin_of_row, kind="stable")
    edges = np.searchsorted(bin_of_row[order], np.arange(bins + 1))
    ordered = rows.take(pa.array(order)).combine_chunks().to_batches()[0]
    with pa.ipc.new_file(str(path), rows.schema, options=_OPTIONS) as file:
        for start, stop in pairwise(edges):
            file.write_batch(ordered.slice(start, stop - start))


def read_bin(folder: Path, number: int) -> pa.Table | None:
    """Bin `number` of all files of a folder, in their order; None when there is no file."""
    batches: list[pa.RecordBatch] = []
    for path in sorted(folder.glob("*.arrow")):
        with pa.OSFile(str(path)) as file:
            batches.append(pa.ipc.open_file(file).get_batch(number))
    return pa.Table.from_batches(batches).combine_chunks() if batches else None
