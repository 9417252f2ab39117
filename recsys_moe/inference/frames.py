"""DataFrames in and out of a Predictor: predictions of rows, and ranked lists as rows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recsys_moe.errors import DataError, suggestion
from recsys_moe.frames import WANTED, arrow_table, is_frame, is_pandas
from recsys_moe.inference.cold_start.columns import columns_read
from recsys_moe.inference.cold_start.whom import ENTITIES, ColdItem, Entity
from recsys_moe.inference.files.predict import rows_per_piece, with_scores
from recsys_moe.inference.id_scorer import IdScorer
from recsys_moe.kinds import KINDS

if TYPE_CHECKING:
    import pandas as pd

LABEL = "DataFrame"


def scored_frame(
    predictor: IdScorer,
    frame: Any,
    calibrate: bool,
    *,
    user: Any = None,
    item: Any = None,
    context: Any = None,
) -> pd.DataFrame:
    """The predictions of a DataFrame's rows, with its index if it is of pandas.

    `user`, `item`: its columns of ids; None: those that the data were prepared from, or else
    columns of these names. Raises DataError with the column or the row, TypeError for no frame.
    """
    if not is_frame(frame):
        got = type(frame).__name__
        raise TypeError(f"expected a list of users and one of items, or {WANTED}, got {got}")
    if context is not None:
        raise TypeError("context must not be given with a DataFrame; add it as columns")
    asked = dict(zip(ENTITIES, (user, item), strict=True))
    ids: dict[Entity, str] = {}
    more = [name for entity in ENTITIES for name in columns_read(predictor, entity)]
    more += predictor.context.columns

    def needed(names: list[str]) -> list[str]:
        ids.update({one: _id_column(predictor, one, asked[one], names) for one in ENTITIES})
        return [*dict.fromkeys([*ids.values(), *(name for name in more if name in names)])]

    table = arrow_table(frame, needed, LABEL)
    found = _scored(predictor, table, (ids["user"], ids["item"])).to_pandas()
    if is_pandas(frame):
        found.index = frame.index
    left_out = [] if calibrate else [name for name in found if name.endswith("_calibrated")]
    return found.drop(columns=left_out)


def _scored(predictor: IdScorer, table: pa.Table, ids: tuple[str, str]) -> pa.Table:
    """The predictions alone. `ids`: columns of users and items."""
    rows = rows_per_piece(predictor)
    scored = [
        with_scores(predictor, LABEL, ids, (table.slice(start, rows), start))[0]
        for start in range(0, max(len(table), 1), rows)
    ]
    return pa.concat_tables(one.drop_columns(table.column_names) for one in scored)


def _id_column(predictor: IdScorer, entity: str, asked: Any, names: list[str]) -> str:
    """The column that is asked for, or that `prepare` read the ids from, or the entity's name.

    Raises DataError where none is there.
    """
    words = shlex.split(predictor.artifact.schema.command)
    before = [value for option, value in pairwise(words) if option == f"--{entity}"][:1]
    wanted = [str(asked)] if asked is not None else [*before, entity]
    for name in wanted:
        if name in names:
            return name
    raise DataError(
        f"{LABEL}: column {wanted[0]!r} ({entity}) is missing; {suggestion(wanted[0], names)}; "
        f"pass {entity}=COLUMN if it has another name"
    )


def ranked_frame(
    predictor: IdScorer, users: Sequence[Any], lists: Sequence[Sequence[Any]], score: Any
) -> pd.DataFrame:
    """A row for each user and rank: `user` (None for a cold-start user), `unseen_user`, `rank`,
    `item`, `title`, and the scores of the lists; `score`: what they are ranked by."""
    import pandas as pd

    sizes = [len(one) for one in lists]
    entries = [entry for one in lists for entry in one]
    plain = (None if isinstance(one, ColdItem) else predictor.users.plain(one) for one in users)
    ids = [one for one, size in zip(plain, sizes, strict=True) for _ in range(size)]
    columns: dict[str, Any] = {
        "user": pd.Series(ids, dtype=object) if None in ids else ids,
        "unseen_user": np.repeat(np.array(predictor.are_unseen_users(users), dtype=bool), sizes),
        "rank": np.array([entry.rank for entry in entries], dtype=np.int64),
        "item": [entry.item for entry in entries],
        "title": [entry.title for entry in entries],
    }
    tasks = [task.name for task in predictor.tasks if KINDS[task.kind].ranks]
    for name in dict.fromkeys([*tasks, *([] if score is None else [score])]):
        columns[name] = np.array([entry.scores[name] for entry in entries], dtype=np.float32)
    return pd.DataFrame(columns)
