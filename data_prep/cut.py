"""A prepared folder cut in time: what was known at a moment, and what came after it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_prep.ids import Index, trained_first
from data_prep.rows import Examples
from data_prep.split.randomness import stream
from data_prep.write.counts import Counts
from data_prep.write.parts import write_parts, write_table
from data_prep.write.writer import FEATURES_FILE
from recsys_moe.folders import replacing_folder
from recsys_moe.schema import SCHEMA_FILE, SPLITS, DataError, Feature, Schema

VAL_EVERY = 20
"""One row of so many, of those before a cut, is of val."""


class PreparedLog:
    """All rows of a prepared folder with the time of every row, in memory and in random order."""

    def __init__(self, data: Path) -> None:
        """Raises DataError for a folder whose unknown ids share an index."""
        self.data, self.schema = Path(data), Schema.load(data)
        parts = [part for split in SPLITS for part in sorted((self.data / split).glob("*.parquet"))]
        rows = pa.concat_tables(pq.read_table(part) for part in parts)
        order = stream(0, "order of a cut").permutation(len(rows))
        self.rows = rows.take(pa.array(order)).combine_chunks()
        self.time = self.rows["timestamp"].to_numpy()
        self.is_val = np.arange(len(rows)) % VAL_EVERY == VAL_EVERY - 1
        for one in (self.schema.user, self.schema.item):
            self._check_ids(one)

    def _check_ids(self, feature: Feature) -> None:
        without = int((self.rows[feature.column].to_numpy() >= feature.size).sum())
        if without:
            raise DataError(
                f"{self.data}: every {feature.name} must have an index, but {without} rows have "
                "none; prepare the data again with this version of recsys-moe"
            )

    def cut(self, out: Path, start: int, end: int | None = None) -> Schema:
        """Write to `out` the rows before `start` as train and val and those from then on, to before
        `end`, as test. Seconds since 1970; later rows are left out.

        Rows keep their labels, `event` and `timestamp`; the same ones are of val at any `start`.
        Ids of train come first. Features keep the folder's categories and scales.
        Raises DataError where a split would be empty.
        """
        is_before = self.time < start
        is_test = ~is_before if end is None else ~is_before & (self.time < end)
        chosen = is_before & ~self.is_val, is_before & self.is_val, is_test
        places = dict(zip(SPLITS, map(np.flatnonzero, chosen), strict=True))
        for split, place in places.items():
            if not len(place):
                raise DataError(
                    f"the {split} split of the period from {start} would have no rows; choose "
                    "another --start, and another --out"
                )
        parts = {split: self.rows.take(pa.array(place)) for split, place in places.items()}
        with replacing_folder(out) as folder:
            schema = self._write(parts, folder)
        return schema

    def _write(self, parts: dict[str, pa.Table], folder: Path) -> Schema:
        features: dict[str, Any] = {}
        for one in (self.schema.user, self.schema.item):
            index = parts["train"][one.column].to_numpy()
            trained, order, place = trained_first(index, one.size)
            features[one.name] = replace(one, trained=trained)
            self._write_ids(one, order, folder)
            parts = {split: _renumbered(part, one, place) for split, part in parts.items()}
        for split, part in parts.items():
            write_parts([part], folder / split)
        if (self.data / FEATURES_FILE).is_file():
            shutil.copyfile(self.data / FEATURES_FILE, folder / FEATURES_FILE)
        counts = {split: self._counts(part, split) for split, part in parts.items()}
        rows = {split: len(part) for split, part in parts.items()}
        more: dict[str, Any] = {"vocabulary": "train", "rows": rows, "labels": counts}
        schema = replace(self.schema, **features, **more)
        (folder / SCHEMA_FILE).write_text(schema.to_json(), encoding="utf-8")
        return schema

    def _write_ids(self, feature: Feature, order: Index, folder: Path) -> None:
        name = f"{feature.name}s.parquet"
        table = pq.read_table(self.data / name).take(pa.array(order))
        at = table.column_names.index(feature.column)
        index = pa.array(np.arange(len(table), dtype=np.int32))
        write_table(table.set_column(at, feature.column, index), folder / name)

    def _counts(self, part: pa.Table, split: str) -> dict[str, dict[str, float]]:
        tasks, counts = self.schema.tasks, Counts(self.schema.tasks)
        weight = self.schema.weight
        counts.add(
            Examples(
                user=part[self.schema.user.column].to_numpy(),
                item=part[self.schema.item.column].to_numpy(),
                labels={task.name: _floats(part[task.column]) for task in tasks},
                timestamp=part["timestamp"].to_numpy(),
                weight=None if weight is None else _floats(part[weight]),
            )
        )
        return {task.name: counts.of(task, split) for task in tasks}


def _renumbered(part: pa.Table, feature: Feature, place: Index) -> pa.Table:
    at = part.column_names.index(feature.column)
    index = pa.array(place[part[feature.column].to_numpy()].astype(np.int32))
    return part.set_column(at, feature.column, index)


def _floats(column: pa.ChunkedArray) -> NDArray[np.float32]:
    return column.to_numpy().astype(np.float32)
