"""predict: a file of (user, item) pairs in, the same file with predictions out, in pieces.

Bounded memory: a piece is read, scored and written before the next one, whatever the file's size.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from recsys_moe.errors import ConfigError, DataError, suggestion
from recsys_moe.files import PARQUET, TEXT, check_output, replacing_path, separator, table_suffix
from recsys_moe.inference.newcomers import SIDES, Side, Whom
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.threads import in_turn
from recsys_moe.inference.told_columns import with_columns
from recsys_moe.inference.vocabulary import checked_ids

ROWS_PER_PIECE = 1 << 16
FLAGS = ("unseen_user", "unseen_item")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
OUTPUTS = (*DELIMITERS, ".parquet")
INPUTS = (*TEXT, *PARQUET)


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

    Columns with the names of the model's features tell of users and items that training has not
    seen, `history` of what such users have watched: items with | between them, or ITEM=RATING. New
    are one column per task and, for binary tasks of a calibrated model, `<task>_calibrated`. In
    goes what `prepare table` reads in UTF-8, out come CSV, TSV or Parquet
    by suffix. Row order and all columns are kept; memory stays bounded. The target appears complete
    or not at all. Returns
    counts: rows and unseen ids.
    """
    source, target = Path(source), Path(target)
    _check_paths(source, target, overwrite)
    counts = {"rows": 0, **dict.fromkeys(FLAGS, 0)}
    with replacing_path(target) as part:
        pieces = _scored(predictor, source, (user, item), counts=counts, progress=progress)
        _write(part, target.suffix, pieces)
    return counts


def _check_paths(source: Path, target: Path, overwrite: bool) -> None:
    if table_suffix(source) not in INPUTS:
        known = ", ".join(INPUTS)
        raise ConfigError(f"--input must end in one of {known} (or .gz of it), got {source}")
    if target.suffix not in OUTPUTS:
        raise ConfigError(f"--output must end in one of {', '.join(OUTPUTS)}, got {target}")
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
    score = partial(_with_scores, predictor, source, ids)
    pieces = _regrouped(read_pieces(source), _rows_per_piece(predictor))
    for piece, found in in_turn(score, _numbered(pieces)):
        for name, rows in found.items():
            counts[name] = counts.get(name, 0) + rows
        progress(piece.num_rows)
        yield piece


def _numbered(pieces: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, int]]:
    """With the rows before each."""
    rows = 0
    for piece in pieces:
        yield piece, rows
        rows += piece.num_rows


def _with_scores(
    predictor: Predictor, source: Path, ids: tuple[str, str], numbered: tuple[pa.Table, int]
) -> tuple[pa.Table, dict[str, int]]:
    """A piece with its predictions, and what is to be counted."""
    piece, rows_before = numbered
    calibrated = {name: f"{name}_calibrated" for name in predictor.artifact.calibration}
    new = [*(task.name for task in predictor.tasks), *calibrated.values(), *FLAGS]
    _check_columns(piece, source, ids, new)
    counts = {"rows": piece.num_rows}
    columns = zip(SIDES, ids, strict=True)
    scores = predictor.score(
        *(
            _whom(predictor, side, (source, name, piece, rows_before), counts)
            for side, name in columns
        )
    )
    flags = dict(zip(FLAGS, (scores.unseen_user, scores.unseen_item), strict=True))
    counts |= {name: int(values.sum()) for name, values in flags.items()}
    better = {calibrated[name]: values for name, values in scores.calibrated.items()}
    for name, values in {**scores.tasks, **better, **flags}.items():
        piece = piece.append_column(name, pa.array(values.numpy()))
    return piece, counts


def _whom(
    predictor: Predictor,
    side: Side,
    place: tuple[Path, str, pa.Table, int],
    counts: dict[str, int],
) -> Whom:
    """The ids in a column of a piece of a file, with newcomers where other columns tell of them.

    `place`: the file, the column, the piece and the rows before it."""
    source, name, piece, rows_before = place
    try:
        ids = checked_ids(piece[name], f" in {name!r}", rows_before)
        whom, unknown = with_columns(predictor, side, ids, piece, rows_before)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    for kind, rows in unknown.items():
        counts[kind] = counts.get(kind, 0) + rows
    return whom


def _check_columns(piece: pa.Table, source: Path, ids: tuple[str, str], new: list[str]) -> None:
    twice = [name for name in piece.column_names if piece.column_names.count(name) > 1]
    if twice:
        raise DataError(f"{source}: column {twice[0]!r} appears twice; rename one of them")
    for option, name in zip(("--user", "--item"), ids, strict=True):
        if name not in piece.column_names:
            hint = suggestion(name, piece.column_names)
            raise DataError(f"{source}: column {name!r} ({option}) is missing; {hint}")
    for name in new:
        if name in piece.column_names:
            raise DataError(f"{source}: column {name!r} would be overwritten; rename it first")


def _rows_per_piece(predictor: Predictor) -> int:
    """Whole groups of rows that are routed together, so that no piece cuts one."""
    group = predictor.artifact.config.model.router.eval_rows
    return max(ROWS_PER_PIECE // group, 1) * group


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


def read_pieces(source: Path) -> Iterator[pa.RecordBatch]:
    """The rows; without any, one piece with the columns."""
    try:
        if table_suffix(source) in PARQUET:
            yield from _parquet_pieces(source)
        else:
            yield from _text_pieces(source)
    except (pa.ArrowException, csv.Error, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source} cannot be read: {str(error).splitlines()[0]}") from None


def _parquet_pieces(source: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(source) as file:
        if not file.metadata.num_rows:
            yield pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
        yield from file.iter_batches(batch_size=ROWS_PER_PIECE)


def _text_pieces(source: Path) -> Iterator[pa.RecordBatch]:
    """All columns as text: ids like 007 stay what they are, other columns pass through as typed."""
    with opened_text(source) as (lines, delimiter):
        names = next(csv.reader(lines, delimiter=delimiter), [])
        has_rows = any(line.strip() for line in lines)
    if not names:
        raise DataError(f"{source} cannot be read: it is empty")
    kinds = dict.fromkeys(names, pa.string())
    if not has_rows:
        yield pa.RecordBatch.from_pylist([], schema=pa.schema(list(kinds.items())))
        return
    with pacsv.open_csv(
        str(source),
        parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(column_types=kinds),
    ) as reader:
        yield from reader


@contextmanager
def opened_text(path: Path) -> Iterator[tuple[Iterator[str], str]]:
    """Lines of a table in text, with their ends, packed or not; and what separates its columns."""
    with pa.input_stream(str(path)) as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        header = next(lines, "")
        yield chain([header], lines), separator(header, table_suffix(path))


def _write(path: Path, suffix: str, pieces: Iterator[pa.Table]) -> None:
    write = write_parquet if suffix == ".parquet" else write_text
    first = next(pieces)
    write(path, suffix, chain([first], pieces), first.schema)


def write_parquet(path: Path, suffix: str, pieces: Iterable[pa.Table], schema: pa.Schema) -> None:
    """A row group per piece; `suffix` is there to be called as `write_text` is."""
    # Predictions hardly repeat: looking each up in a dictionary takes longer than writing it.
    repeat = [field.name for field in schema if field.type != pa.float32()]
    with pq.ParquetWriter(path, schema, use_dictionary=repeat) as writer:
        for piece in pieces:
            writer.write_table(piece)


def write_text(path: Path, suffix: str, pieces: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Quotes where a value needs them; pyarrow's own writer quotes all text or none."""
    names = pa.table([[name] for name in schema.names], schema.names)
    with path.open("w", encoding="utf-8", newline="") as file:
        for piece in chain([names], pieces):
            columns = [_cells(*pair) for pair in zip(schema.names, piece.columns, strict=True)]
            cells, returns = zip(*columns, strict=True)
            # Before Python 3.13, csv sees no need for quotes around a carriage return.
            quoting = csv.QUOTE_ALL if any(returns) else csv.QUOTE_MINIMAL
            form: Any = {"delimiter": DELIMITERS[suffix], "quoting": quoting}
            csv.writer(file, lineterminator="\n", **form).writerows(zip(*cells, strict=True))


def _cells(name: str, column: pa.ChunkedArray) -> tuple[list[str | None], bool]:
    """The cells as text, and whether one of them has a carriage return."""
    try:
        text = column.cast(pa.string())
        return text.to_pylist(), bool(pc.any(pc.match_substring(text, "\r")).as_py())
    except (pa.ArrowException, UnicodeDecodeError):
        raise DataError(
            f"--output: column {name!r} ({column.type}) cannot be written as text; "
            "write .parquet, or leave the column out"
        ) from None


def count_rows(source: Path) -> int | None:
    """Rows of a file as far as a progress bar cares: of text, its line ends; None if unknown."""
    try:
        if table_suffix(source) in PARQUET:
            return int(pq.read_metadata(source).num_rows)
        if source.suffix == ".gz":
            return None
        with source.open("rb") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b"")) - 1
    except (pa.ArrowException, OSError):
        return None
