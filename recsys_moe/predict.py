"""predict: a file of (user, item) pairs in, the same file with predictions out, in pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from recsys_moe.config import suggestion
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.predictor import Predictor

ROWS_PER_PIECE = 1 << 16
FLAGS = ("unseen_user", "unseen_item")


def predict_file(
    predictor: Predictor,
    source: Path,
    target: Path,
    *,
    user: str = "user",
    item: str = "item",
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda rows: None,
) -> dict[str, int]:
    """Write `source` plus one column per task and two flags for unseen ids to `target`.

    CSV or Parquet by suffix, in and out. Row order and all columns are kept; memory stays bounded.
    The target appears complete or not at all. Returns counts: rows and unseen ids.
    """
    source, target = Path(source), Path(target)
    _check_paths(source, target, overwrite)
    part = target.with_name(f".{target.name}.part")
    counts = {"rows": 0, **dict.fromkeys(FLAGS, 0)}
    try:
        _write(part, target.suffix, _scored(predictor, source, user, item, counts, progress))
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return counts


def _check_paths(source: Path, target: Path, overwrite: bool) -> None:
    for option, path in (("--input", source), ("--output", target)):
        if path.suffix not in (".csv", ".parquet"):
            raise ConfigError(f"{option} must end in .csv or .parquet, got {path}")
    if not source.is_file():
        raise DataError(f"--input {source}: there is no such file")
    if target.exists() and not overwrite:
        raise ConfigError(f"--output {target} exists; pass --overwrite to replace it")
    if not target.parent.is_dir():
        raise ConfigError(f"--output {target}: there is no folder {target.parent}")


def _scored(
    predictor: Predictor,
    source: Path,
    user: str,
    item: str,
    counts: dict[str, int],
    progress: Callable[[int], None],
) -> Iterator[pa.Table]:
    new = [*(task.name for task in predictor.tasks), *FLAGS]
    for piece in _pieces(source):
        _check_columns(piece, source, (user, item), new, counts["rows"])
        scores = predictor.score(piece[user], piece[item])
        flags = dict(zip(FLAGS, (scores.unseen_user, scores.unseen_item), strict=True))
        for name, values in {**scores.tasks, **flags}.items():
            piece = piece.append_column(name, pa.array(values.numpy()))
        for name, values in flags.items():
            counts[name] += int(values.sum())
        counts["rows"] += piece.num_rows
        progress(piece.num_rows)
        yield piece


def _check_columns(
    piece: pa.Table, source: Path, ids: tuple[str, str], new: list[str], rows_before: int
) -> None:
    twice = [name for name in piece.column_names if piece.column_names.count(name) > 1]
    if twice:
        raise DataError(f"{source}: column {twice[0]!r} appears twice; rename one of them")
    for option, name in zip(("--user", "--item"), ids, strict=True):
        if name not in piece.column_names:
            hint = suggestion(name, piece.column_names)
            raise DataError(f"{source}: column {name!r} ({option}) is missing; {hint}")
        kind = piece.schema.field(name).type
        if not (pa.types.is_integer(kind) or _is_text(kind)):
            raise DataError(f"{source}: ids in {name!r} must be integers or text, got {kind}")
        empty = pa.compute.or_kleene(
            pa.compute.is_null(piece[name]),
            pa.compute.equal(piece[name].cast(pa.string()), "").fill_null(True),
        )
        if (first := pa.compute.index(empty, True).as_py()) >= 0:
            raise DataError(f"{source}: row {rows_before + first + 1} has no value in {name!r}")
    for name in new:
        if name in piece.column_names:
            raise DataError(f"{source}: column {name!r} would be overwritten; rename it first")


def _is_text(kind: pa.DataType) -> bool:
    """Text that casts to plain strings, categories included."""
    return any(
        is_kind(kind)
        for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)
    )


def _pieces(source: Path) -> Iterator[pa.Table]:
    try:
        if source.suffix == ".parquet":
            for batch in pq.ParquetFile(source).iter_batches(batch_size=ROWS_PER_PIECE):
                yield pa.Table.from_batches([batch])
        else:
            yield from _csv_pieces(source)
    except pa.ArrowException as error:
        raise DataError(f"{source} cannot be read: {str(error).splitlines()[0]}") from None


def _csv_pieces(source: Path) -> Iterator[pa.Table]:
    """All columns as text: ids like 007 stay what they are, other columns pass through as typed."""
    with pacsv.open_csv(source) as header:
        names = header.schema.names
    options = pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    with pacsv.open_csv(source, convert_options=options) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _write(path: Path, suffix: str, pieces: Iterator[pa.Table]) -> None:
    writer: Any = None
    kind = pq.ParquetWriter if suffix == ".parquet" else pacsv.CSVWriter
    try:
        for piece in pieces:
            writer = writer or kind(path, piece.schema)
            writer.write_table(piece)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise DataError("--input holds no rows; there is nothing to predict")
