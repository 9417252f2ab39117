"""A table of one's own, in CSV, TSV or Parquet: `recsys-moe prepare table`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pyarrow as pa

from data_prep import delimited, ids, protocols, table_columns, table_files, writer
from data_prep.ids import Ints
from data_prep.options import one_of
from data_prep.rows import UNKNOWN_TIME, Raw
from data_prep.table_files import TableFile
from recsys_moe.schema import SPLITS, ConfigError, DataError, Schema, Task, TaskKind

Duplicates = Literal["error", "first", "last", "keep"]
_RESERVED = ("user_index", "item_index", "timestamp")


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """What to read from every file: our names on the left."""

    user: str
    item: str
    tasks: tuple[tuple[Task, str], ...]
    timestamp: str | None

    def names(self) -> list[str]:
        named = [self.user, self.item, *(column for _, column in self.tasks)]
        return list(dict.fromkeys(named + ([self.timestamp] if self.timestamp else [])))


def prepare(
    out: Path,
    *,
    user: str,
    item: str,
    tasks: Sequence[str],
    input: Path | None = None,
    train: Path | None = None,
    val: Path | None = None,
    test: Path | None = None,
    timestamp: str | None = None,
    items: Path | None = None,
    negatives: Literal["none", "per-user"] = "none",
    duplicates: Duplicates = "error",
    protocol: str = "paper",
    seed: int = 0,
    force: bool = False,
) -> Schema:
    """Prepare `input` (a file or a folder of files), or `train`, `val` and `test` as they are.

    `tasks`: NAME:KIND=COLUMN, as in "watch:binary=clicked"; an empty cell is a missing label.
    `items`: a file with more about the items, by the same item column. `negatives` per-user draws
    unlabelled items for the first binary task. `duplicates`: what to do when a (user, item) pair
    has several rows. Raises DataError for unusable data, ConfigError for options.
    """
    columns = _Columns(user=user, item=item, tasks=_tasks(tasks), timestamp=timestamp)
    places = _places(input, train, val, test)
    _check_options(columns, negatives, duplicates)
    _check_protocol(protocol, seed, presplit=input is None, timed=timestamp is not None)
    writer.check_target(Path(out), force)
    parts = [table_files.read(place, columns.names()) for place in places]
    given = np.repeat(np.arange(len(parts), dtype=np.int8), [_rows(part) for part in parts])
    raw = _raw([file for part in parts for file in part], columns, items)
    raw, rows = _distinct(raw, [file for part in parts for file in part], duplicates)
    binary = next((task.name for task in raw.tasks if task.kind == "binary"), None)
    prepared = protocols.prepare_rows(
        raw,
        protocol=protocol,
        seed=seed,
        command=_command(columns, tasks, negatives, duplicates, protocol, seed),
        negative_task=binary if negatives == "per-user" else None,
        given=given[rows] if input is None else None,
        repeats=duplicates == "keep",
    )
    return writer.write(prepared, Path(out), force=force)


def _tasks(specs: Sequence[str]) -> tuple[tuple[Task, str], ...]:
    """Tasks and the columns of their labels; every task weighs the same."""
    if not specs:
        raise ConfigError("--task must be given at least once, as in --task watch:binary=clicked")
    found = tuple(_task(spec, 1 / len(specs)) for spec in specs)
    names = [task.name for task, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--task names must differ, got {name!r} twice")
    return found


def _task(spec: str, weight: float) -> tuple[Task, str]:
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9_]*):([a-z]+)=(.+)", spec)
    if match is None:
        raise ConfigError(
            f"--task must be NAME:KIND=COLUMN, as in watch:binary=clicked, got {spec!r}"
        )
    name, kind, column = match.groups()
    one_of(f"--task {name}: KIND", kind, ("binary", "regression"))
    if name in _RESERVED:
        raise ConfigError(f"--task must not be named {', '.join(_RESERVED)}, got {name!r}")
    return Task(name=name, kind=cast(TaskKind, kind), column=name, weight=weight), column


def _places(
    input: Path | None, train: Path | None, val: Path | None, test: Path | None
) -> list[Path]:
    given = [place for place in (train, val, test) if place is not None]
    if input is not None and not given:
        return [Path(input)]
    if input is None and len(given) == len(SPLITS):
        return [Path(place) for place in given]
    raise ConfigError("give either --input, or all three of --train, --val and --test")


def _check_options(columns: _Columns, negatives: str, duplicates: str) -> None:
    one_of("--negatives", negatives, ("none", "per-user"))
    one_of("--duplicates", duplicates, ("error", "first", "last", "keep"))
    if negatives == "per-user" and all(task.kind != "binary" for task, _ in columns.tasks):
        raise ConfigError("--negatives per-user needs a binary task; add --task NAME:binary=COLUMN")


def _check_protocol(protocol: str, seed: int, presplit: bool, timed: bool) -> None:
    protocols.check_options(protocol, seed)
    if protocol != "paper" and presplit:
        raise ConfigError(f"--protocol {protocol} splits --input; --train, --val, --test are split")
    if protocol != "paper" and not timed:
        raise ConfigError(f"--protocol {protocol} needs --timestamp COLUMN")


def _rows(files: list[TableFile]) -> int:
    return sum(len(file.columns) for file in files)


def _raw(files: list[TableFile], columns: _Columns, items: Path | None) -> Raw:
    def joined(column: str) -> pa.Array:
        return pa.concat_arrays([table_columns.ids(file, column) for file in files])

    if _rows(files) == 0:
        raise DataError(f"{files[0].label}: has no rows")
    features, extra = _item_features(items, columns.item)
    return Raw(
        name="table",
        user=ids.integers_if_canonical(joined(columns.user)),
        item=ids.integers_if_canonical(joined(columns.item)),
        labels={
            task.name: np.concatenate([table_columns.labels(f, column, task.kind) for f in files])
            for task, column in columns.tasks
        },
        timestamp=np.concatenate([_times(file, columns.timestamp) for file in files]),
        tasks=tuple(task for task, _ in columns.tasks),
        file=files[0].label if len(files) == 1 else "the files",
        items=features,
        sources=tuple(file.source for file in [*files, *extra]),
    )


def _times(file: TableFile, column: str | None) -> Ints:
    if column is None:
        return np.full(len(file.columns), UNKNOWN_TIME, dtype=np.int64)
    return table_columns.timestamps(file, column)


def _item_features(items: Path | None, key: str) -> tuple[pa.Table | None, list[TableFile]]:
    """All columns of the items' file with `key` first, as `item`; and the files read."""
    if items is None:
        return None, []
    files = table_files.read(Path(items), None)
    tables = []
    for file in files:
        if key not in file.columns.column_names:
            raise delimited.missing_column(file.label, key, file.columns.column_names)
        rest = file.columns.drop_columns([key])
        tables.append(rest.add_column(0, "item", table_columns.ids(file, key)))
    table = pa.concat_tables(tables)
    if len(set(table.column_names) | {"item_index"}) <= len(table.column_names):
        raise DataError(f"{items}: columns must not be named item or item_index, nor repeat")
    ids.refuse_repeated(table, "item", str(items))
    return table, files


def _distinct(raw: Raw, files: list[TableFile], duplicates: Duplicates) -> tuple[Raw, Ints]:
    """`raw` with one row per pair, or as it is with `keep`; and which rows these are."""
    everything = np.arange(len(raw.timestamp))
    if duplicates == "keep":
        return raw, everything
    (user, _), (item, item_ids) = ids.encode(raw.user), ids.encode(raw.item)
    rows = ids.one_per_value(user * len(item_ids) + item, last=duplicates == "last")
    dropped = len(everything) - len(rows)
    if dropped and duplicates == "error":
        again = int(np.setdiff1d(everything, rows)[0])
        raise DataError(
            f"{_place(files, again)}: user {raw.user[again].as_py()!r} and item "
            f"{raw.item[again].as_py()!r} have a row before; {dropped} such rows; "
            "pass --duplicates first, last or keep"
        )
    return raw.take(rows, dropped_repeats=dropped), rows


def _place(files: list[TableFile], row: int) -> str:
    for file in files:
        if row < len(file.columns):
            return file.place(row)
        row -= len(file.columns)
    raise IndexError(row)


def _command(
    columns: _Columns,
    tasks: Sequence[str],
    negatives: str,
    duplicates: str,
    protocol: str,
    seed: int,
) -> str:
    words = ["prepare", "table", "--user", columns.user, "--item", columns.item]
    for spec in tasks:
        words += ["--task", spec]
    if columns.timestamp is not None:
        words += ["--timestamp", columns.timestamp]
    words += ["--negatives", negatives, "--duplicates", duplicates]
    return shlex.join([*words, "--protocol", protocol, "--seed", str(seed)])
