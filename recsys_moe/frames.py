"""DataFrames as Arrow tables: of pandas, and of all that speak one of PROTOCOLS.

Polars, DuckDB and pyarrow offer the Arrow PyCapsule interface, older libraries `__dataframe__`.
Columns are shared, not copied, where the library holds them as Arrow does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recsys_moe.errors import DataError, suggestion

if TYPE_CHECKING:
    import pandas as pd

Columns = Sequence[str] | Callable[[list[str]], Sequence[str]] | None
"""Names, or what chooses them from those of a frame; None: all."""
PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__")
WANTED = f"a DataFrame (of pandas, or with {PROTOCOLS[0]} or {PROTOCOLS[2]})"


def is_frame(value: object) -> bool:
    """Whether it may be a DataFrame: a path, a list or a dict is none."""
    return _is_pandas(value) or any(hasattr(value, name) for name in PROTOCOLS)


def arrow_table(frame: Any, columns: Columns, label: str) -> pa.Table:
    """The `columns` of a DataFrame as an Arrow table; names are taken as text.

    Of pandas, named levels of the index are columns too. `label` names the frame in messages.
    Raises DataError for a column that is missing, there twice, or of values that Arrow has not.
    """
    read = _of_pandas if _is_pandas(frame) else _other
    table = read(frame, columns, label)
    for field in table.schema:
        if isinstance(field.type, pa.BaseExtensionType):  # a period of days is stored as a number
            raise DataError(
                f"{label}: column {field.name!r} must hold text, numbers or times, not "
                f"{field.type}; convert it first"
            )
    return table


def is_pandas(value: object) -> bool:
    """Whether it is a DataFrame of pandas, which has an index."""
    return _is_pandas(value) and hasattr(value, "columns")


def _is_pandas(value: object) -> bool:
    pandas = sys.modules.get("pandas")  # what is not imported has made no value
    return pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series)


def _of_pandas(frame: Any, columns: Columns, label: str) -> pa.Table:
    if not hasattr(frame, "columns"):
        raise DataError(f"{label}: must be a DataFrame, got a Series; call to_frame() on it")
    levels = [number for number, name in enumerate(frame.index.names) if name is not None]
    names = [str(name) for name in frame.columns]
    names += [str(frame.index.names[number]) for number in levels]
    places = _places(names, columns, label)

    def cells(place: int) -> pd.Series[Any] | pd.Index[Any]:
        width = len(frame.columns)
        if place < width:
            return frame.iloc[:, place]
        return frame.index.get_level_values(levels[place - width])

    return pa.table({names[place]: _array(cells(place), names[place], label) for place in places})


def _array(cells: Any, name: str, label: str) -> pa.Array | pa.ChunkedArray:
    if hasattr(cells, "sparse"):
        cells = cells.sparse.to_dense()
    try:
        return pa.array(cells, from_pandas=True)
    except Exception as error:  # what Arrow cannot hold has many
        with suppress(TypeError, UnicodeError):
            return pa.array(_texts(cells), pa.string())
        raise _unreadable(f"{label}: column {name!r}", error) from None


def _texts(cells: Any) -> list[str | None]:
    """Of a column that mixes text and whole numbers: an id is the same as either.

    Raises TypeError for any other.
    """
    missing = cells.isna()
    for kind in {*map(type, cells[~missing])}:
        if not issubclass(kind, str | int | np.integer) or kind is bool:
            raise TypeError(kind)
    return [None if no else str(cell) for cell, no in zip(cells, missing, strict=True)]


def _other(frame: Any, columns: Columns, label: str) -> pa.Table:
    """By one of PROTOCOLS."""
    try:
        if any(hasattr(frame, name) for name in PROTOCOLS[:2]):
            table = pa.table(frame)
        else:
            from pyarrow.interchange import from_dataframe

            table = from_dataframe(frame)
    except Exception as error:  # also the library's own
        raise _unreadable(f"{label}: this {type(frame).__name__}", error) from error
    chosen = table.select(_places(table.column_names, columns, label))
    for place, field in enumerate(chosen.schema):
        if (kind := _without_views(field.type)) != field.type:
            try:
                column = _as(kind, chosen[place])
            except pa.ArrowException as error:
                raise _unreadable(f"{label}: column {field.name!r}", error) from None
            chosen = chosen.set_column(place, field.name, column)
    return chosen


def _without_views(kind: pa.DataType) -> pa.DataType:
    """The type with text in place of the views of Polars, which Arrow (as of 26.0) cannot take."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    inner = _without_views(kind.value_type) if hasattr(kind, "value_type") else None
    if inner is None or inner == kind.value_type:
        return kind
    return (
        pa.dictionary(kind.index_type, inner)
        if pa.types.is_dictionary(kind)
        else pa.large_list(inner)
    )


def _as(kind: pa.DataType, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(kind):
        return column.cast(kind)
    parts = [  # Arrow does not cast a dictionary of views
        pa.DictionaryArray.from_arrays(part.indices, part.dictionary.cast(kind.value_type))
        for part in column.chunks
    ]
    return pa.chunked_array(parts, kind)


def _places(names: list[str], columns: Columns, label: str) -> list[int]:
    """Where the columns are. Raises DataError for one that is not there, or there twice."""
    chosen = names if columns is None else columns(names) if callable(columns) else columns
    for name in chosen:
        if name not in names:
            hint = suggestion(name, names) if names else "there are no columns"
            raise DataError(f"{label}: column {name!r} is missing; {hint}")
        if names.count(name) > 1:
            raise DataError(f"{label}: column {name!r} appears twice; rename one of them")
    return [names.index(name) for name in chosen]


def _unreadable(what: str, error: Exception) -> DataError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return DataError(f"{what} cannot be read ({reason}); convert it first, e.g. to text")
