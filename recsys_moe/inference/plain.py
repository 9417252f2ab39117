"""Scalars and containers of NumPy, pandas, Arrow and torch as plain Python."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Set
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from recsys_moe import raw_ids

PLAIN = frozenset({str, int, bool, bytes, type(None)})
LONGEST = 100
"""Characters of a value that an error shows."""


def plain(value: Any) -> Any:
    """`value` as plain Python; None for NaN, NaT, pd.NA and nulls of Arrow.

    A scalar becomes a number, text or bool; an array, column, tuple or set a list; a mapping or
    struct a dict. Other values, such as dates, are returned unchanged.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, pa.Scalar):
        found = value.as_py()
        return plain(dict(found) if isinstance(value, pa.MapScalar) and found else found)
    if isinstance(value, Mapping):
        return {_key(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | Set):
        return [*value] if PLAIN.issuperset(map(type, value)) else [plain(one) for one in value]
    if isinstance(value, pa.ChunkedArray):
        return plain(value.to_pylist())
    if isinstance(value, np.ndarray | np.generic) and _has_no_plain_type(value.dtype):
        array = np.asarray(value)
        return [plain(one) for one in array] if array.ndim else _odd(array[()])
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return _number(value) if isinstance(value, float | Decimal) else _unless_missing(value)


def plain_list(values: Any, what: str = "ids") -> list[Any]:
    """`plain` of each. Raises TypeError unless `values` is a list of `what`."""
    found = values if _is_table(values) else plain(values)
    if isinstance(found, list):
        return found
    is_one = isinstance(found, str | bytes | dict) or _is_table(found)
    if isinstance(found, Iterable) and not is_one:
        return [plain(one) for one in found]
    got, remedy = shown(found), "pass a list, an array or a column"
    if isinstance(found, str | int | float):
        remedy = f"pass [{got}]"
    elif _is_table(found):
        got, remedy = f"a {type(found).__name__}", "pass a column"
    raise TypeError(f"expected a list of {what}, got {got}; {remedy}")


def plain_ids(ids: Any) -> Any:
    """`plain_list`, but text and integers in Arrow stay there, where they are found faster."""
    if isinstance(ids, pa.Array | pa.ChunkedArray):
        kind = ids.type.value_type if pa.types.is_dictionary(ids.type) else ids.type
        if pa.types.is_integer(kind) or raw_ids.is_text(kind):
            return ids
    return plain_list(ids)


def plain_dict(values: Any, what: str) -> dict[Any, Any]:
    """Of a mapping, a struct of Arrow or a row of pandas; empty for what is missing. Raises
    TypeError for anything else."""
    is_row = not isinstance(values, Mapping) and hasattr(values, "items") and not _is_table(values)
    found = plain(dict(values.items()) if is_row else values)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise TypeError(f"expected {what} by name, got {shown(found)}; pass a dict")
    return found


def whole_number(name: str, value: Any, least: int) -> int:
    """3, 3.0 and equal values as int. Raises ValueError unless it is whole and at least `least`."""
    number = plain(value)
    is_whole = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
    if isinstance(number, bool) or not is_whole or number < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {shown(number)}")
    return int(number)


def shown(value: Any) -> str:
    """For an error: on one line, shortened to LONGEST characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _key(key: Any) -> Any:
    """Of a dict: no list, which none can be."""
    found = plain(key)
    return key if isinstance(found, list | dict) else found


def _has_no_plain_type(dtype: np.dtype[Any]) -> bool:
    """`tolist` makes integers of times in nanoseconds, and leaves long doubles as they are."""
    return dtype.kind in "mM" or (dtype.kind == "f" and dtype.itemsize > 8)


def _odd(value: Any) -> Any:
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.isnat(value):
            return None
        return value.astype("m8[us]").item() if isinstance(value, np.timedelta64) else value
    return int(value) if value.is_integer() else plain(float(value))


def _number(value: float | Decimal) -> Any:
    if isinstance(value, float):
        return float(value) if value == value else None
    if value.is_nan():
        return None
    is_whole = value.is_finite() and value.adjusted() < raw_ids.MOST_DIGITS and value == int(value)
    return int(value) if is_whole else float(value)


def _unless_missing(value: Any) -> Any:
    pandas = sys.modules.get("pandas")  # what is not imported has made no value
    if pandas is not None and (value is pandas.NA or value is pandas.NaT):
        return None
    return value


def _is_table(values: Any) -> bool:
    return hasattr(values, "columns")
