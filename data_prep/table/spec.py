"""What `prepare table` is told about a table: its columns and tasks, and what is known of items."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep import ids
from data_prep.ids import Ints
from data_prep.options import one_of
from data_prep.read import delimited
from data_prep.rows import UNKNOWN_TIME
from data_prep.table import columns as table_columns
from data_prep.table import files as table_files
from data_prep.table.files import TableFile
from recsys_moe.schema import ConfigError, DataError, Task, TaskKind

Duplicates = Literal["error", "first", "last", "keep"]
_RESERVED = ("user_index", "item_index", "timestamp")
PLAIN_NUMBER = r"^-?(0|[1-9][0-9]{0,14})([.][0-9]+)?([eE][+-]?[0-9]{1,2})?$"
"""Up to 15 digits before the point: so many a float64 keeps."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What to read from every file: our names on the left."""

    user: str
    item: str
    tasks: tuple[tuple[Task, str], ...]
    timestamp: str | None

    def names(self) -> list[str]:
        named = [self.user, self.item, *(column for _, column in self.tasks)]
        return list(dict.fromkeys(named + ([self.timestamp] if self.timestamp else [])))


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for, whatever the engine."""

    columns: Columns
    items: Path | None
    """The file with more about the items."""
    negatives: Literal["none", "per-user"]
    duplicates: Duplicates
    protocol: str
    seed: int

    @property
    def negative_task(self) -> str | None:
        """The first binary task, where negatives are drawn for it."""
        binary = (task.name for task, _ in self.columns.tasks if task.kind == "binary")
        return next(binary, None) if self.negatives == "per-user" else None

    @property
    def command(self) -> str:
        """The command without places, so that equal input gives equal bytes."""
        words = ["prepare", "table", "--user", self.columns.user, "--item", self.columns.item]
        for task, column in self.columns.tasks:
            words += ["--task", f"{task.name}:{task.kind}={column}"]
        if self.columns.timestamp is not None:
            words += ["--timestamp", self.columns.timestamp]
        words += ["--negatives", self.negatives, "--duplicates", self.duplicates]
        return shlex.join([*words, "--protocol", self.protocol, "--seed", str(self.seed)])


def parse_tasks(specs: Sequence[str]) -> tuple[tuple[Task, str], ...]:
    """Tasks and the columns of their labels; every task weighs the same."""
    if not specs:
        raise ConfigError("--task must be given at least once, as in --task watch:binary=clicked")
    tasks = tuple(_task(spec, 1 / len(specs)) for spec in specs)
    names = [task.name for task, _ in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--task names must differ, got {name!r} twice")
    return tasks


def _task(spec: str, weight: float) -> tuple[Task, str]:
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9_]*):([a-z]+)=(.+)", spec)
    if match is None:
        raise ConfigError(
            f"--task must be NAME:KIND=COLUMN, as in watch:binary=clicked, got {spec!r}"
        )
    name, kind, column = match.groups()
    one_of(f"--task {name}: KIND", kind, get_args(TaskKind))
    if name in _RESERVED:
        raise ConfigError(f"--task must not be named {', '.join(_RESERVED)}, got {name!r}")
    return Task(name=name, kind=cast(TaskKind, kind), column=name, weight=weight), column


def times(file: TableFile, column: str | None) -> Ints:
    """Seconds since 1970, UNKNOWN_TIME where there is no column."""
    if column is None:
        return np.full(len(file.columns), UNKNOWN_TIME, dtype=np.int64)
    return table_columns.timestamps(file, column)


def item_features(items: Path | None, key: str) -> tuple[pa.Table | None, list[TableFile]]:
    """All columns of the items' file with `key` first, as `item`; and the files read.

    Columns of a text file that hold plain numbers only become numbers, for `recommend --where`.
    """
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
    if all(file.layout for file in files):  # a text file; Parquet says itself what a column is
        table = _typed(table)
    return table, files


def _typed(table: pa.Table) -> pa.Table:
    """Empty cells become nulls, and columns of plain numbers numbers; `item` and `title` stay text.

    A column that has a value like 007 or 12345678901234567890 in it is text: as a number it would
    not be what was written.
    """
    for place, name in enumerate(table.column_names):
        if name != "item":
            cells = table[name]
            text = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
            table = table.set_column(place, name, text if name == "title" else _numbers(text))
    return table


def _numbers(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """int64 or else float64 where all that is there is a plain number, otherwise `text`."""
    is_plain = pc.all(pc.match_substring_regex(text, PLAIN_NUMBER)).as_py()
    if not is_plain or text.null_count == len(text):
        return text
    try:
        return text.cast(pa.int64())
    except pa.ArrowInvalid:
        return text.cast(pa.float64())
