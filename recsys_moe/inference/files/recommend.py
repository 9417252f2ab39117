"""recommend: a file of user ids in, their ranked items out, in pieces; and files of ids."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recsys_moe.errors import ConfigError, DataError, suggestion
from recsys_moe.files import PARQUET, TEXT, check_output, replacing_path, table_suffix
from recsys_moe.inference.files.tables import opened_text, unreadable, write_table
from recsys_moe.inference.predictor import Predictor, Recommendation
from recsys_moe.inference.threads import USERS_AT_ONCE, one_thread_each
from recsys_moe.inference.vocabulary import NoId, id_texts
from recsys_moe.kinds import KINDS

USERS_PER_PIECE = 1024
ID_FILES = (*TEXT, *PARQUET)
OUTPUTS = (".csv", ".parquet", ".jsonl")
Rows = list[dict[str, Any]]


def recommend_file(
    predictor: Predictor,
    users: Path,
    output: Path,
    k: int = 10,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda rows: None,
    **options: Any,
) -> dict[str, int]:
    """Rank items for every user of a file (see `read_ids`) and write the lists to `output`.

    CSV and Parquet have one row per user and rank, JSON Lines one object per user. `options` are
    those of `Predictor.recommend`. Keeps the order of users, uses bounded memory, and writes the
    output completely or not at all. Returns counts of users and unknown users.
    """
    users, output = Path(users), Path(output)
    _check_output(output, overwrite)
    counts = {"users": 0, "unseen_user": 0}
    with replacing_path(output) as part:
        pieces = _ranked(predictor, users, {"k": k, **options}, counts=counts, progress=progress)
        with closing(pieces):  # also where writing fails, torch gets its threads back
            _write(part, output.suffix, pieces, _schema(predictor, users, options.get("score")))
    return counts


def as_object(
    user: str | int | None, unseen: bool, ranked: Sequence[Recommendation]
) -> dict[str, Any]:
    """One user's list as the JSON object that the command prints."""
    return {"user": user, "unseen_user": unseen, "items": as_objects(ranked)}


def as_objects(ranked: Sequence[Recommendation]) -> list[dict[str, Any]]:
    """The items of a list, as JSON has them."""
    return [{"rank": r.rank, "item": r.item, "title": r.title, **r.scores} for r in ranked]


def read_ids(path: Path, column: str, option: str) -> Iterator[str]:
    """Ids of a .txt file, one per line, or of the column `column`, or else the only column, of a
    CSV or Parquet file. Raises ConfigError and DataError that name `option`."""
    path = Path(path)
    if table_suffix(path) not in ID_FILES:
        raise ConfigError(f"{option} must end in one of {', '.join(ID_FILES)}, got {path}")
    if not path.is_file():
        raise DataError(f"{option} {path}: no such file; pass a list or table of ids")
    readers = {".txt": _text_ids, **dict.fromkeys(PARQUET, _parquet_ids)}
    read, number = readers.get(table_suffix(path), _csv_ids), 0
    try:
        for number, value in enumerate(read(path, column, option), start=1):
            yield from id_texts([value], rows_before=number - 1)
    except NoId as error:
        raise DataError(f"{option} {path}: {error}") from None
    except (pa.ArrowException, csv.Error, OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error, option=option) from None
    if not number:
        raise DataError(f"{option} {path} contains no ids")


def names_ids_file(text: str) -> bool:
    """Is an option that takes ids or a file of them the name of a file?"""
    return table_suffix(Path(text)) in ID_FILES


def _text_ids(path: Path, column: str, option: str) -> Iterator[str]:
    with opened_text(path) as (lines, _):
        yield from (line.rstrip("\r\n") for line in lines if line.strip())


def _csv_ids(path: Path, column: str, option: str) -> Iterator[str]:
    with opened_text(path) as (lines, delimiter):
        rows = csv.reader(lines, delimiter=delimiter)
        header = next(rows, [])
        place = header.index(_column(header, column, f"{option} {path}"))
        yield from (row[place] if place < len(row) else "" for row in rows if row)


def _parquet_ids(path: Path, column: str, option: str) -> Iterator[Any]:
    file = pq.ParquetFile(path)
    name = _column(file.schema_arrow.names, column, f"{option} {path}")
    for batch in file.iter_batches(columns=[name]):
        yield from batch.column(0).to_pylist()


def _column(names: list[str], column: str, where: str) -> str:
    if column not in names and len(names) != 1:
        raise DataError(f"{where}: column {column!r} is missing; {suggestion(column, names)}")
    return column if column in names else names[0]


def _ranked(
    predictor: Predictor,
    file: Path,
    options: dict[str, Any],
    *,
    counts: dict[str, int],
    progress: Callable[[int], None],
) -> Generator[Rows, None, None]:
    """Pieces of `as_object`, one per user."""
    ids = read_ids(file, "user", "--users")
    with one_thread_each() as pool:
        while piece := list(islice(ids, USERS_PER_PIECE)):
            resolved = predictor.resolve(piece)
            unseen = predictor.are_unseen_users(resolved)
            named = predictor.observed(resolved.identities)
            parts = replace(resolved, identities=named).split(USERS_AT_ONCE)
            lists = chain.from_iterable(pool.map(partial(predictor.recommend, **options), parts))
            users = map(predictor.users.plain, piece)
            yield [as_object(*row) for row in zip(users, unseen, lists, strict=True)]
            counts["users"] += len(piece)
            counts["unseen_user"] += sum(unseen)
            progress(len(piece))


def _check_output(output: Path, overwrite: bool) -> None:
    if output.suffix not in OUTPUTS:
        raise ConfigError(f"--output must end in one of {', '.join(OUTPUTS)}, got {output}")
    check_output(output, overwrite)


def _write(path: Path, suffix: str, pieces: Iterator[Rows], schema: pa.Schema) -> None:
    if suffix == ".jsonl":
        with path.open("w", encoding="utf-8", newline="") as stream:
            for piece in pieces:
                stream.writelines(json.dumps(user) + "\n" for user in piece)
        return
    tables = (pa.Table.from_pylist(_flat(piece, schema), schema) for piece in pieces)
    write_table(path, suffix, tables, schema)


def _flat(piece: Rows, schema: pa.Schema) -> Rows:
    """One row per user and rank."""
    user_id = str if schema.field("user").type == pa.string() else int
    return [
        {"user": user_id(user["user"]), "unseen_user": user["unseen_user"], **item}
        for user in piece
        for item in user["items"]
    ]


def _schema(predictor: Predictor, users: Path, score: str | None) -> pa.Schema:
    """Columns of the output, also where filters leave no row: predictions are float32."""
    names = [task.name for task in predictor.tasks if KINDS[task.kind].ranks]
    products = [score] if score and score not in names else []
    return pa.schema(
        [
            ("user", _user_type(predictor, users)),
            ("unseen_user", pa.bool_()),
            ("rank", pa.int64()),
            ("item", predictor.items.ids.type),
            ("title", pa.string()),
            *((name, pa.float32()) for name in [*names, *products]),
        ]
    )


def _user_type(predictor: Predictor, users: Path) -> pa.DataType:
    """That of the model's ids, unless they are integers and one of the file's is none."""
    plain = map(predictor.users.plain, read_ids(users, "user", "--users"))
    return pa.int64() if all(isinstance(user, int) for user in plain) else pa.string()
