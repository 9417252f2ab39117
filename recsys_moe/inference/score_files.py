"""predict: a file of (user, item) pairs in, the same file with predictions out, in pieces.

Bounded memory: a piece is read, scored and written before the next one, whatever the file's size.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from recsys_moe.errors import ConfigError, DataError, suggestion
from recsys_moe.files import check_output, replacing_path
from recsys_moe.inference.predictor import Predictor

ROWS_PER_PIECE = 1 << 16
FLAGS = ("unseen_user", "unseen_item")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*DELIMITERS, ".parquet")


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
    """Write `source` plus predictions and two flags for unseen ids to `target`.

    One column per task and, for binary tasks of a calibrated model, `<task>_calibrated`. CSV, TSV
    or Parquet by suffix, in and out. Row order and all columns are kept; memory stays bounded.
    The target appears complete or not at all. Returns counts: rows and unseen ids.
    """
    source, target = Path(source), Path(target)
    _check_paths(source, target, overwrite)
    counts = {"rows": 0, **dict.fromkeys(FLAGS, 0)}
    with replacing_path(target) as part:
        pieces = _scored(predictor, source, (user, item), counts=counts, progress=progress)
        _write(part, target.suffix, pieces)
    return counts


def _check_paths(source: Path, target: Path, overwrite: bool) -> None:
    for option, path in (("--input", source), ("--output", target)):
        if path.suffix not in SUFFIXES:
            raise ConfigError(f"{option} must end in one of {', '.join(SUFFIXES)}, got {path}")
    if not source.is_file():
        raise DataError(f"--input {source}: there is no such file")
    check_output(target, overwrite)


def _scored(
    predictor: Predictor,
    source: Path,
    ids: tuple[str, str],
    *,
    counts: dict[str, int],
    progress: Callable[[int], None],
) -> Iterator[pa.Table]:
    """Pieces of `source` with their predictions; `ids`: the columns of users and items."""
    calibrated = {name: f"{name}_calibrated" for name in predictor.artifact.calibration}
    new = [*(task.name for task in predictor.tasks), *calibrated.values(), *FLAGS]
    for piece in _regrouped(_pieces(source), _rows_per_piece(predictor)):
        _check_columns(piece, source, ids, new, rows_before=counts["rows"])
        scores = predictor.score(*(piece[name] for name in ids))
        flags = dict(zip(FLAGS, (scores.unseen_user, scores.unseen_item), strict=True))
        better = {calibrated[name]: values for name, values in scores.calibrated.items()}
        for name, values in {**scores.tasks, **better, **flags}.items():
            piece = piece.append_column(name, pa.array(values.numpy()))
        for name, values in flags.items():
            counts[name] += int(values.sum())
        counts["rows"] += piece.num_rows
        progress(piece.num_rows)
        yield piece


def _check_columns(
    piece: pa.Table, source: Path, ids: tuple[str, str], new: list[str], *, rows_before: int
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


def _rows_per_piece(predictor: Predictor) -> int:
    """Whole groups of rows that are routed together, so that no piece cuts one."""
    group = predictor.artifact.config.model.router.eval_rows
    return max(ROWS_PER_PIECE // group, 1) * group


def _regrouped(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The rows of `batches` in tables of `rows` rows, the last one shorter."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting, count = [*waiting, batch], count + batch.num_rows
        while count >= rows:
            together = pa.Table.from_batches(waiting)
            yield together.slice(0, rows)
            waiting, count = together.slice(rows).to_batches(), count - rows
    if count:
        yield pa.Table.from_batches(waiting)


def _pieces(source: Path) -> Iterator[pa.RecordBatch]:
    try:
        if source.suffix == ".parquet":
            yield from pq.ParquetFile(source).iter_batches(batch_size=ROWS_PER_PIECE)
        else:
            yield from _text_pieces(source)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{source} cannot be read: {str(error).splitlines()[0]}") from None


def _text_pieces(source: Path) -> Iterator[pa.RecordBatch]:
    """All columns as text: ids like 007 stay what they are, other columns pass through as typed."""
    layout = pacsv.ParseOptions(delimiter=DELIMITERS[source.suffix], newlines_in_values=True)
    with pacsv.open_csv(source, parse_options=layout) as header:
        names = header.schema.names
    options = pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    with pacsv.open_csv(source, parse_options=layout, convert_options=options) as reader:
        yield from reader


def _write(path: Path, suffix: str, pieces: Iterator[pa.Table]) -> None:
    write = write_parquet if suffix == ".parquet" else write_text
    first = next(pieces, None)
    if first is None:
        raise DataError("--input holds no rows; there is nothing to predict")
    write(path, suffix, chain([first], pieces), first.schema)


def write_parquet(path: Path, suffix: str, pieces: Iterable[pa.Table], schema: pa.Schema) -> None:
    """A row group per piece; `suffix` is there to be called as `write_text` is."""
    with pq.ParquetWriter(path, schema) as writer:
        for piece in pieces:
            writer.write_table(piece)


def write_text(path: Path, suffix: str, pieces: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Quotes where a value needs them; pyarrow's own writer quotes all text or none."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=DELIMITERS[suffix], lineterminator="\n")
        writer.writerow(schema.names)
        for piece in pieces:
            columns = [_cells(*pair) for pair in zip(schema.names, piece.columns, strict=True)]
            writer.writerows(zip(*columns, strict=True))


def _cells(name: str, column: pa.ChunkedArray) -> list[str | None]:
    try:
        cells: list[str | None] = column.cast(pa.string()).to_pylist()
    except (pa.ArrowException, UnicodeDecodeError):
        raise DataError(
            f"--output: column {name!r} ({column.type}) cannot be written as text; "
            "write .parquet, or leave the column out"
        ) from None
    return cells


def count_rows(source: Path) -> int | None:
    """Rows of a file as far as a progress bar cares: of text, its line ends; None if unknown."""
    try:
        if source.suffix == ".parquet":
            return int(pq.read_metadata(source).num_rows)
        with source.open("rb") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b"")) - 1
    except (pa.ArrowException, OSError):
        return None
