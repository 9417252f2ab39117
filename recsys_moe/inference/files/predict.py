"""predict: a file of (user, item) pairs in, the same file with predictions out, in pieces.

Bounded memory: a piece is read, scored and written before the next one, whatever the file's size.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa

from recsys_moe.encodings import UTF8, known
from recsys_moe.errors import ConfigError, DataError, suggestion
from recsys_moe.files import check_output, replacing_path, table_suffix
from recsys_moe.inference.cold_start.columns import with_columns
from recsys_moe.inference.cold_start.whom import ENTITIES
from recsys_moe.inference.files.tables import (
    INPUTS,
    OUTPUTS,
    ROWS_PER_PIECE,
    read_pieces,
    write_table,
)
from recsys_moe.inference.id_scorer import IdScorer
from recsys_moe.inference.threads import in_turn
from recsys_moe.inference.vocabulary import checked_ids

logger = logging.getLogger("recsys_moe")
FLAGS = ("unseen_user", "unseen_item")


def predict_file(
    predictor: IdScorer,
    source: Path,
    target: Path,
    *,
    user: str = "user",
    item: str = "item",
    encoding: str = UTF8,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda rows: None,
) -> dict[str, int]:
    """Write `source` plus predictions and two flags for unknown ids to `target`.

    Columns with the names of the model's context features hold these. For unknown ids, columns with
    the names of its other features and the column `history` (items separated by |, or ITEM=RATING)
    describe cold-start users and items. Adds a column per task and,
    for calibrated binary tasks, `<task>_calibrated`. Reads CSV and TSV (in `encoding`, or .gz) and
    Parquet; writes CSV, TSV (UTF-8) or Parquet, by suffix. Keeps row order and columns, uses
    bounded memory, and writes the target completely or not at all. Returns counts of rows and of
    unknown ids.
    """
    source, target, encoding = Path(source), Path(target), known(encoding)
    check_paths(source, target, overwrite)
    counts = {"rows": 0, **dict.fromkeys(FLAGS, 0)}
    with replacing_path(target) as part:
        rows = read_pieces(source, encoding)
        pieces = _scored(predictor, (source, rows), (user, item), counts=counts, progress=progress)
        with closing(pieces):  # also where writing fails, torch gets its threads back
            first = next(pieces)
            write_table(part, target.suffix, chain([first], pieces), first.schema)
    return counts


def check_paths(source: Path, target: Path, overwrite: bool) -> None:
    if table_suffix(source) not in INPUTS:
        known = ", ".join(INPUTS)
        raise ConfigError(f"--input must end in one of {known} (or .gz), got {source}")
    if target.suffix not in OUTPUTS:
        raise ConfigError(f"--output must end in one of {', '.join(OUTPUTS)}, got {target}")
    if not source.is_file():
        raise DataError(f"--input {source}: no such file; pass a table of users and items")
    check_output(target, overwrite)


def _scored(
    predictor: IdScorer,
    file: tuple[Path, Iterator[pa.RecordBatch]],
    ids: tuple[str, str],
    *,
    counts: dict[str, int],
    progress: Callable[[int], None],
) -> Generator[pa.Table, None, None]:
    """The rows of a file with their predictions; `ids`: the columns of users and items."""
    source, batches = file
    score = partial(with_scores, predictor, source, ids)
    rows = rows_per_piece(predictor)
    pieces = _regrouped(batches, rows)
    for piece, found in in_turn(score, ((piece, n * rows) for n, piece in enumerate(pieces))):
        for name, number in found.items():
            counts[name] = counts.get(name, 0) + number
        progress(piece.num_rows)
        yield piece


def rows_per_piece(predictor: IdScorer) -> int:
    """So many that no piece cuts rows that are routed together."""
    group = predictor.artifact.config.model.eval_rows
    return max(ROWS_PER_PIECE // group, 1) * group


def with_scores(
    predictor: IdScorer, source: Path | str, ids: tuple[str, str], numbered: tuple[pa.Table, int]
) -> tuple[pa.Table, Counter[str]]:
    """A piece, of the rows from a number on, with its predictions; and what is to be counted."""
    piece, before = numbered
    calibrated = {name: f"{name}_calibrated" for name in predictor.artifact.calibration}
    new = [*predictor.prediction_names, *calibrated.values(), *FLAGS]
    _check_columns(piece, source, ids, new)
    if not before:
        _tell_missing(predictor, source, piece.column_names)
    counts = Counter(rows=piece.num_rows)
    resolved = []
    try:
        for entity, name in zip(ENTITIES, ids, strict=True):
            raw = checked_ids(piece[name], f" in {name!r}", before)
            found, unknown = with_columns(predictor, entity, raw, piece, before)
            resolved.append(found)
            counts.update(unknown)
        context = predictor.context.read_columns(piece, before)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    if context.unknown:
        counts["unknown_context"] = len(context.unknown)
    scores = predictor.score(*resolved, context=context)
    flags = dict(zip(FLAGS, (scores.unseen_user, scores.unseen_item), strict=True))
    counts.update({name: int(values.sum()) for name, values in flags.items()})
    better = {calibrated[name]: values for name, values in scores.calibrated.items()}
    columns = {**scores.tasks, **better, **flags}
    made = {name: pa.array(values.numpy()) for name, values in columns.items()}
    made |= {name: pa.array(classes, pa.string()) for name, classes in scores.classes.items()}
    for name, column in made.items():
        piece = piece.append_column(name, column)
    return piece, counts


def _tell_missing(predictor: IdScorer, source: Path | str, names: list[str]) -> None:
    missing = [repr(name) for name in predictor.context.columns if name not in names]
    if missing:
        columns = ", ".join(missing)
        logger.warning("%s has no column %s: scored without this context", source, columns)


def _check_columns(
    piece: pa.Table, source: Path | str, ids: tuple[str, str], new: list[str]
) -> None:
    twice = [name for name in piece.column_names if piece.column_names.count(name) > 1]
    if twice:
        raise DataError(f"{source}: column {twice[0]!r} appears twice; rename one")
    if ids[0] == ids[1]:
        raise ConfigError(f"--user and --item must be different columns, got {ids[0]!r} for both")
    for option, name in zip(("--user", "--item"), ids, strict=True):
        if name not in piece.column_names:
            hint = suggestion(name, piece.column_names)
            raise DataError(f"{source}: column {name!r} ({option}) is missing; {hint}")
    for name in new:
        if name in piece.column_names:
            raise DataError(f"{source}: column {name!r} would be overwritten; rename it first")


def _regrouped(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The rows of `batches` in tables of `rows` rows, the last one shorter; at least one table."""
    waiting: list[pa.RecordBatch] = []
    count, is_first = 0, True
    for batch in batches:
        waiting, count = [*waiting, batch], count + batch.num_rows
        while count >= rows:
            together = pa.Table.from_batches(waiting)
            yield together.slice(0, rows)
            is_first = False
            waiting, count = together.slice(rows).to_batches(), count - rows
    if count or is_first:
        yield pa.Table.from_batches(waiting)
