"""The only place that writes: checks everything, then makes the folder appear in one step."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_prep import ids
from data_prep.rows import UNKNOWN_TIME, Examples, Prepared
from recsys_moe.schema import SCHEMA_FILE, SPLITS, ConfigError, DataError, Feature, Schema, Task

log = logging.getLogger("recsys_moe.prepare")
ROWS_PER_PART = 1 << 23
ROWS_PER_GROUP = 1 << 20


def check_target(out: Path, force: bool) -> None:
    """Raises ConfigError when `out` must not be written; call it before long work.

    With `force` only prepared data are replaced, never a folder of something else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / SCHEMA_FILE).is_file():
        raise ConfigError(f"--out {out} exists and is not prepared data; choose another folder")
    if not force:
        raise ConfigError(f"--out {out} exists; pass --overwrite, or choose another folder")


def write(prepared: Prepared, out: Path, *, force: bool = False) -> Schema:
    """Check `prepared`, write it to `out`, and return its schema.

    A previous output stays whole until the new one is complete. Raises DataError when a check
    fails, ConfigError when `out` cannot be written; nothing is left behind then.
    """
    check_target(out, force)
    _check(prepared)
    schema = _schema(prepared)
    target = out.resolve()
    building = target.parent / f".{target.name}.building-{os.getpid()}"
    try:
        building.mkdir(parents=True)
        _write_files(prepared, schema, building)
        _replace(target, building)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    log.info("wrote %s: %s", out, ", ".join(f"{n} {name}" for name, n in schema.rows.items()))
    return schema


def _check(prepared: Prepared) -> None:
    sizes = (len(prepared.users), len(prepared.items))
    for name, part in prepared.splits.items():
        if len(part) == 0:
            raise DataError(f"the {name} split has no rows; prepare more data or another protocol")
        _check_indices(part, sizes, name)
        for task in prepared.tasks:
            _check_labels(part.labels[task.name], task, name)
    if not prepared.repeats:
        _check_pairs(list(prepared.splits.values()), sizes)


def _check_indices(part: Examples, sizes: tuple[int, int], split: str) -> None:
    for column, index, size in zip(("user", "item"), (part.user, part.item), sizes, strict=True):
        if index.min() < 0 or index.max() > size:
            raise DataError(
                f"{split}: {column}_index must be in 0..{size}, "
                f"got {index.min()}..{index.max()}; please report this"
            )


def _check_labels(labels: NDArray[np.float32], task: Task, split: str) -> None:
    known = labels[~np.isnan(labels)]
    if task.kind == "binary":
        wrong, rule = known[(known != 0) & (known != 1)], "0 or 1"
    else:
        low = -np.inf if task.low is None else task.low
        high = np.inf if task.high is None else task.high
        outside = ~((known >= low) & (known <= high) & np.isfinite(known))
        wrong, rule = known[outside], f"a finite number in {low}..{high}"
    if len(wrong):
        raise DataError(f"{split}: label {task.name!r} must be {rule}, got {wrong[0]:g}")


def _check_pairs(parts: list[Examples], sizes: tuple[int, int]) -> None:
    """No pair twice, within a split or across; unseen ids share an index and cannot tell."""
    known = [(part.user < sizes[0]) & (part.item < sizes[1]) for part in parts]
    keys = [
        part.user[rows] * sizes[1] + part.item[rows]
        for part, rows in zip(parts, known, strict=True)
    ]
    ordered = np.sort(np.concatenate(keys))
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        user, item = divmod(int(ordered[again[0]]), sizes[1])
        raise DataError(
            f"{len(again)} (user, item) pairs have more than one row, first user_index {user} "
            f"with item_index {item}; leave one row per pair"
        )


def _schema(prepared: Prepared) -> Schema:
    return Schema(
        name=prepared.name,
        protocol=prepared.protocol,
        vocabulary=prepared.vocabulary,
        user=_feature("user", prepared.users),
        item=_feature("item", prepared.items),
        tasks=prepared.tasks,
        rows={name: len(part) for name, part in prepared.splits.items()},
        labels={
            name: {
                task.name: _label_counts(part.labels[task.name], task) for task in prepared.tasks
            }
            for name, part in prepared.splits.items()
        },
        seeds=prepared.seeds,
        sources=prepared.sources,
        command=prepared.command,
        report=prepared.report,
    )


def _feature(name: str, table: pa.Table) -> Feature:
    raw = table[name]
    return Feature(name=name, column=f"{name}_index", size=len(raw), id_type=ids.id_type(raw))


def _label_counts(labels: NDArray[np.float32], task: Task) -> dict[str, float]:
    """Over the labelled rows; the mean of none is given as 0."""
    known = labels[~np.isnan(labels)].astype(np.float64)
    mean = float(known.mean()) if len(known) else 0.0
    counts: dict[str, float] = {"labelled": len(known), "mean": mean}
    if task.kind == "binary":
        counts["positive"] = int((known == 1).sum())
    return counts


def _write_files(prepared: Prepared, schema: Schema, folder: Path) -> None:
    timed = any((part.timestamp != UNKNOWN_TIME).any() for part in prepared.splits.values())
    for name in SPLITS:
        table = _split_table(prepared.splits[name], prepared.tasks, timed)
        for number, start in enumerate(range(0, len(table), ROWS_PER_PART)):
            path = folder / name / f"part-{number:05d}.parquet"
            _write_parquet(table.slice(start, ROWS_PER_PART), path)
    for name, known in (("user", prepared.users), ("item", prepared.items)):
        index = pa.array(np.arange(len(known), dtype=np.int32))
        _write_parquet(known.add_column(1, f"{name}_index", index), folder / f"{name}s.parquet")
    (folder / SCHEMA_FILE).write_text(schema.to_json(), encoding="utf-8")


def _split_table(part: Examples, tasks: tuple[Task, ...], timed: bool) -> pa.Table:
    columns = {
        "user_index": pa.array(part.user.astype(np.int32)),
        "item_index": pa.array(part.item.astype(np.int32)),
    }
    for task in tasks:
        label = part.labels[task.name]
        columns[task.column] = pa.array(label, type=pa.float32(), mask=np.isnan(label))
    if timed:
        unknown = part.timestamp == UNKNOWN_TIME
        columns["timestamp"] = pa.array(part.timestamp, type=pa.int64(), mask=unknown)
    return pa.table(columns)


def _write_parquet(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    plain = table.replace_schema_metadata(None)
    pq.write_table(plain, path, compression="zstd", version="2.6", row_group_size=ROWS_PER_GROUP)


def _replace(out: Path, building: Path) -> None:
    """Put `building` in the place of `out`; the old folder comes back if that fails."""
    old = out.parent / f".{out.name}.replaced-{os.getpid()}"
    if out.exists():
        out.rename(old)
    try:
        building.rename(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
