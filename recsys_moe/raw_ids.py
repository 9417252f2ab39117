"""Raw ids as text, by the rule of docs/how-to/prepare-data.md, "Ids".

A whole number has one text, whatever its type: 7, 7.0, "7" and "7.0" are "7".
"""

from __future__ import annotations

import operator
import re
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MISSING = ("NaN", "nan", "<NA>")
"""What NumPy, pandas and JavaScript write for a missing value: not an id."""
WHOLE = r"-?(?:0|[1-9][0-9]*)"
POINTED = re.compile(rf"({WHOLE})\.0+")
"""A whole number as floating point columns are written; 007.0, 7. and 7e0 are other texts."""
INT64 = re.compile("0|-?[1-9][0-9]{0,18}")
"""A whole number of up to 19 digits."""
LIMIT = 2.0**63
"""Whole numbers in floating point are ids from -LIMIT to below LIMIT."""
MOST_DIGITS = 76
"""Of a decimal number that is an id; the widest Arrow column has as many."""


class Column(NamedTuple):
    """The ids of an Arrow column."""

    texts: pa.Array
    """string; null where there is no id."""
    refused: NDArray[np.bool_]
    """Where there is a value that is not an id."""


def of_text(text: str) -> str | None:
    """The id of a text; None for blanks and "NaN"."""
    if text in MISSING or not text.strip():
        return None
    if ".0" not in text and text != "-0":
        return text
    pointed = POINTED.fullmatch(text)
    plain = pointed[1] if pointed else text
    return "0" if plain == "-0" else plain


def of_value(value: object) -> str | None:
    """The id of any value; None for None, NaN, 1.5, True, a date, " "."""
    if isinstance(value, str):
        return of_text(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, Decimal):
        return str(int(value)) if _is_whole(value) else None
    try:
        return str(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        whole = getattr(value, "is_integer", bool)()  # of any floating point type
        return str(int(value)) if whole and -LIMIT <= value < LIMIT else None  # type: ignore


def _is_whole(number: Decimal) -> bool:
    is_short = number.is_finite() and number.adjusted() < MOST_DIGITS
    return is_short and number == number.to_integral_value()


def can_be_ids(kind: pa.DataType) -> bool:
    """Whether a column may hold ids: text, numbers, or null without values."""
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return is_number or is_text(kind) or pa.types.is_null(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether it is a string of any layout."""
    layouts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_of(kind) for is_of in layouts)


def of_column(column: pa.Array | pa.ChunkedArray) -> Column:
    """`of_value` of every cell, without a Python object for each."""
    array: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(array.type):
        return _of_dictionary(array)
    if is_text(array.type):
        texts = array.cast(pa.string())
        none = pc.or_(pc.equal(pc.utf8_trim_whitespace(texts), ""), _is_in(texts, MISSING))
        if pc.any(none).as_py():
            texts = pc.if_else(none, pa.scalar(None, pa.string()), texts)
        return Column(plain(texts), np.zeros(len(texts), dtype=bool))
    if pa.types.is_integer(array.type):
        return Column(array.cast(pa.string()), np.zeros(len(array), dtype=bool))
    if pa.types.is_floating(array.type):
        return _of_floats(array)
    texts = pa.array(map(of_value, array.to_pylist()), pa.string())
    return Column(texts, np.asarray(pc.and_(array.is_valid(), texts.is_null())))


def plain(texts: pa.Array) -> pa.Array:
    """Texts with whole numbers in their one form."""
    if not pc.any(pc.match_substring(texts, ".0")).as_py() and not _has(texts, "-0"):
        return texts
    texts = pc.replace_substring_regex(texts, rf"^({WHOLE})\.0+$", r"\1")
    return pc.if_else(pc.equal(texts, "-0"), "0", texts)


def are_integers(texts: pa.Array) -> pa.Array:
    """Which are whole numbers of up to 19 digits in their one form."""
    return pc.match_substring_regex(texts, f"^({INT64.pattern})$")


def _of_floats(array: pa.Array) -> Column:
    number = array.to_numpy(zero_copy_only=False).astype(np.float64)
    missing = np.isnan(number)
    whole = (number == np.floor(number)) & (number >= -LIMIT) & (number < LIMIT)
    texts = pa.array(np.where(whole, number, 0).astype(np.int64), mask=~whole).cast(pa.string())
    return Column(texts, ~(whole | missing))


def _of_dictionary(array: pa.Array) -> Column:
    texts, refused = of_column(array.dictionary)
    codes = array.indices.fill_null(len(texts)).to_numpy()
    return Column(texts.take(array.indices), np.append(refused, False)[codes])


def _is_in(texts: pa.Array, some: tuple[str, ...]) -> pa.Array:
    return pc.is_in(texts, value_set=pa.array(some))


def _has(texts: pa.Array, text: str) -> bool:
    return bool(pc.any(pc.equal(texts, text)).as_py())
