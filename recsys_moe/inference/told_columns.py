"""What columns of a file tell of users and items that training has not seen."""

from __future__ import annotations

import pyarrow as pa

from recsys_moe.errors import DataError
from recsys_moe.inference.newcomers import Newcomer, Whom
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.vocabulary import Ids


def with_columns(
    predictor: Predictor, side: str, ids: Ids, rows: pa.Table, rows_before: int = 0
) -> tuple[Whom, int]:
    """The ids, with newcomers for those that training has not seen where columns of `rows` tell of
    features; and in how many rows a category is unknown.

    A column tells of the feature of its name. Raises DataError with the row.
    """
    vocabulary = predictor.users if side == "user" else predictor.items
    reader = predictor.newcomers.readers[side]
    columns = [name for name in reader.names if name in rows.column_names]
    if not columns:
        return ids, 0
    unseen_N = vocabulary.index(ids)[1].nonzero()[:, 0]
    if not len(unseen_N):
        return ids, 0
    whom = [*(ids.to_pylist() if isinstance(ids, pa.Array | pa.ChunkedArray) else ids)]
    unknown = 0
    told = rows.select(columns).take(pa.array(unseen_N.numpy())).to_pylist()
    for place, cells in zip(unseen_N.tolist(), told, strict=True):
        features = {name: None if cell != cell else cell for name, cell in cells.items()}
        try:
            unknown += bool(reader.read(features)[1])
        except DataError as error:
            raise DataError(f"row {rows_before + place + 1}: {error}") from None
        whom[place] = Newcomer(features)
    return whom, unknown
