"""The only place that writes: checks everything, then makes the folder appear in one step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.features.fitting import vocabularies
from data_prep.ids import pair_keys
from data_prep.rows import UNKNOWN_TIME, WEIGHT, Examples, Prepared
from data_prep.write.counts import Counts
from data_prep.write.parts import ROWS_PER_GROUP, split_table, write_parts, write_table
from recsys_moe.files import Kind, check_out
from recsys_moe.folders import replacing_folder
from recsys_moe.kinds import MOST_LEVELS, kind_of, positive_task
from recsys_moe.schema import (
    ENTITIES,
    SCHEMA_FILE,
    SPLITS,
    DataError,
    Feature,
    Schema,
    Task,
    check_names,
)

log = logging.getLogger("recsys_moe.prepare")
FEATURES_FILE = "features.parquet"

PREPARED = Kind(
    "prepared data",
    lambda folder: (
        all((folder / f"{name}s.parquet").is_file() for name in ("user", "item"))
        and bool(Schema.load(folder).rows)
    ),
    (
        SCHEMA_FILE,
        "users.parquet",
        "items.parquet",
        FEATURES_FILE,
        *(f"{n}/part-*.parquet" for n in SPLITS),
    ),
)


def check_target(out: Path, force: bool, **inputs: str | Path | None) -> None:
    """Raises ConfigError when `out` must not be written; call it before long work.

    With `force` only prepared data are replaced, never a folder of something else, nor `inputs`,
    paths (or URLs) by option.
    """
    places = {f"--{name}": Path(place) for name, place in inputs.items() if place is not None}
    check_out(out, PREPARED, force, places)


def write(prepared: Prepared, out: Path, *, force: bool = False) -> Schema:
    """Check `prepared`, write it to `out`, and return its schema.

    A previous output stays whole until the new one is complete. Raises DataError when a check
    fails, ConfigError when `out` must not or cannot be written; nothing is left behind then.
    """
    check_target(out, force)
    parts = prepared.splits
    for name, part in parts.items():  # before anything is written
        _check_rows(len(part), name)
        _check_block(part, prepared, name)
    if not prepared.repeats:
        _check_pairs(prepared)
    timed = any((part.timestamp != UNKNOWN_TIME).any() for part in parts.values())
    blocks = {name: part.blocks(ROWS_PER_GROUP) for name, part in parts.items()}
    return write_blocks(prepared, blocks, out, timed=timed, force=force)


def write_blocks(
    prepared: Prepared,
    blocks: Mapping[str, Iterable[Examples]],
    out: Path,
    *,
    timed: bool,
    force: bool = False,
) -> Schema:
    """Like `write`, with the rows of each split in blocks that are read one after the other.

    How the rows are cut into blocks changes nothing in `out`. `timed`: whether any row has a
    timestamp. `prepared.splits` is not read, and pairs are not checked for repeats.
    """
    check_target(out, force)
    check_names(prepared.tasks, prepared.more_columns, "")
    with replacing_folder(out) as folder:
        counts = {
            name: _write_split(blocks[name], prepared, folder / name, timed=timed)
            for name in SPLITS
        }
        _check_weights(prepared, light := counts["train"].weightless())
        schema = _schema(prepared, counts)
        _write_ids(prepared, schema, folder)
    for warning in (*_one_class(schema), *(_LIGHT % name for name in light)):
        log.warning("%s", warning)
    log.info("wrote %s: %s", out, ", ".join(f"{n} {name}" for name, n in schema.rows.items()))
    return schema


def _one_class(schema: Schema) -> Iterator[str]:
    """Warnings of binary tasks that cannot be learned or measured."""
    for split, tasks in schema.labels.items():
        for name, counts in tasks.items():
            ones, labelled = counts.get("positive"), counts["labelled"]
            if ones in (0, labelled):
                harm = "it cannot be learned" if split == "train" else "AUC is undefined"
                if ones and split == "train":
                    harm += "; --negatives per-user samples negatives"
                yield (
                    f"{split}: task {name} has labels of one class ({ones:,.0f} positive of "
                    f"{labelled:,.0f}): {harm}"
                )


_LIGHT = "train: all rows (positives, if binary) of task %s have weight 0: it cannot be learned"


def _check_weights(prepared: Prepared, light: list[str]) -> None:
    if len(light) == len(prepared.tasks):
        raise DataError(
            f"train: all rows (positives, if binary) of {', '.join(light)} have weight 0, so "
            "nothing can be learned; pass another column as --weight, or omit it"
        )


def _write_split(
    blocks: Iterable[Examples], prepared: Prepared, folder: Path, *, timed: bool
) -> Counts:
    counts = Counts(prepared.tasks)

    def tables() -> Iterator[pa.Table]:
        for block in blocks:
            if len(block):
                _check_block(block, prepared, folder.name)
                counts.add(block)
                yield split_table(block, prepared.tasks, timed)

    write_parts(tables(), folder)
    _check_rows(counts.rows, folder.name)
    return counts


def _check_rows(rows: int, split: str) -> None:
    if rows == 0:
        raise DataError(f"the {split} split has no rows; use more data or another --protocol")


def _check_block(block: Examples, prepared: Prepared, split: str) -> None:
    """Raises DataError for an index or a label that is out of its range."""
    for column, index in (("user", block.user), ("item", block.item)):
        size = len(prepared.users if column == "user" else prepared.items)
        if index.min() < 0 or index.max() >= size:
            raise DataError(
                f"{split}: {column}_index must be in 0..{size - 1}, "
                f"got {index.min()}..{index.max()}; please report this"
            )
    for task in prepared.tasks:
        _check_labels(block.labels[task.name], task, split)


def _check_labels(labels: NDArray[np.float32], task: Task, split: str) -> None:
    known = labels[~np.isnan(labels)]
    kind = kind_of(task)
    wrong = known[kind.outside(known)]
    if len(wrong):
        raise DataError(f"{split}: label {task.name!r} must be {kind.rule}, got {wrong[0]:g}")


def _check_pairs(prepared: Prepared) -> None:
    """Raises DataError for a pair that is there twice in a split, or in two of a random split.

    A split that follows time may have a negative that a later one has again, as either; where rows
    have an order, so may the split itself.
    """
    num_items, task = len(prepared.items), positive_task(prepared.tasks)
    keys = [pair_keys(part.user, part.item, num_items) for part in prepared.splits.values()]
    if prepared.events and prepared.negatives and task is not None:
        labels = (part.labels[prepared.tasks[task].name] for part in prepared.splits.values())
        keys = [key[label == 1] for key, label in zip(keys, labels, strict=True)]
    for together in [np.concatenate(keys)] if prepared.vocabulary == "all" else keys:
        ordered = np.sort(together)
        again = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(again):
            user, item = divmod(int(ordered[again[0]]), num_items)
            raise DataError(
                f"{len(again)} (user, item) pairs have more than one row, first user_index {user} "
                f"with item_index {item}; leave one row per pair"
            )


def _with_levels(task: Task, labels: dict[str, dict[str, dict[str, float]]]) -> Task:
    """With the levels of its labels. Raises DataError for too many."""
    splits = {split: counts[task.name] for split, counts in labels.items()}
    levels, shares = kind_of(task).levels_of(splits)
    if len(levels) > MOST_LEVELS:
        raise DataError(
            f"labels of {task.name} must have at most {MOST_LEVELS} different values for kind "
            f"{task.kind}, got more; use another kind"
        )
    return replace(task, levels=levels, shares=shares)


def _schema(prepared: Prepared, counts: dict[str, Counts]) -> Schema:
    labels = {
        split: {task.name: of_split.of(task, split) for task in prepared.tasks}
        for split, of_split in counts.items()
    }
    tasks = tuple(_with_levels(task, labels) for task in prepared.tasks)
    check_names(tasks, prepared.more_columns, "")
    users, items = prepared.trained or (len(prepared.users), len(prepared.items))
    return Schema(
        name=prepared.name,
        protocol=prepared.protocol,
        vocabulary=prepared.vocabulary,
        user=_feature("user", prepared.users, users),
        item=_feature("item", prepared.items, items),
        tasks=tasks,
        rows={split: of_split.rows for split, of_split in counts.items()},
        labels=labels,
        weight=WEIGHT if prepared.weighted else None,
        events=prepared.events,
        seeds=prepared.seeds,
        sources=prepared.sources,
        command=prepared.command,
        report=prepared.report,
        negatives=prepared.negatives,
        **{
            f"{entity}_features": tuple(f.feature for f in prepared.features if f.entity == entity)
            for entity in ENTITIES
        },
    )


def _feature(name: str, table: pa.Table, trained: int) -> Feature:
    return Feature(
        name=name,
        column=f"{name}_index",
        size=len(table),
        trained=trained,
        id_type="int64" if pa.types.is_integer(table[name].type) else "string",
    )


def _write_ids(prepared: Prepared, schema: Schema, folder: Path) -> None:
    for name, known in (("user", prepared.users), ("item", prepared.items)):
        index = pa.array(np.arange(len(known), dtype=np.int32))
        plain = known.add_column(1, f"{name}_index", index).replace_schema_metadata(None)
        write_table(plain, folder / f"{name}s.parquet")
    if prepared.features:
        write_table(vocabularies(prepared.features), folder / FEATURES_FILE)
    (folder / SCHEMA_FILE).write_text(schema.to_json(), encoding="utf-8")
