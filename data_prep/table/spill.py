"""Rows set aside on disk in numbered bins, and the rows of one bin read back.

A file holds rounds of batches, one batch per bin, so that a bin is read without the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.ids import Ints

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


class SpillFile:
    """Writes rounds of `bins` batches to `path`."""

    def __init__(self, path: Path, bins: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._bins = path, bins
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def __enter__(self) -> SpillFile:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, rows: pa.Table, bins: Ints) -> None:
        """A round: each row to its bin, in the order they have."""
        if len(rows) == 0:
            return
        if self._writer is None:
            self._writer = pa.ipc.new_file(str(self._path), rows.schema, options=_OPTIONS)
        order = np.argsort(bins, kind="stable")
        edges = np.searchsorted(bins[order], np.arange(self._bins + 1))
        ordered = rows.take(pa.array(order)).combine_chunks().to_batches()[0]
        for start, stop in zip(edges[:-1], edges[1:], strict=True):
            self._writer.write_batch(ordered.slice(start, stop - start))


def read_bin(paths: Iterable[Path], number: int, bins: int) -> pa.Table | None:
    """Bin `number` of all files, in their order; None when no file has a row in any bin."""
    batches: list[pa.RecordBatch] = []
    for path in paths:
        with pa.OSFile(str(path)) as file:
            reader = pa.ipc.open_file(file)
            batches += [reader.get_batch(n) for n in range(number, reader.num_record_batches, bins)]
    return pa.Table.from_batches(batches).combine_chunks() if batches else None
