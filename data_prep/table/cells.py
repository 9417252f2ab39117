"""Cells of a user's table as text, numbers and features; a wrong one is named with its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.features.fitting import LARGEST
from data_prep.features.spec import READ, Wanted
from data_prep.read import delimited
from data_prep.read.bad_rows import BadRows, Mask
from data_prep.table.files import TableFile
from recsys_moe import raw_ids
from recsys_moe.cells import flat, numbers
from recsys_moe.schema import DataError

Read = TypeVar("Read")
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


class Cells:
    """The cells of a file, and which of its rows have none that is wrong."""

    def __init__(self, file: TableFile, bad: BadRows | None = None) -> None:
        self.file = file
        self.good = np.ones(len(file.columns), dtype=bool)
        self._bad = bad or BadRows()
        self.notes = self._bad.notes

    def flat(self, column: str) -> Any:
        """The column as one array, with dictionaries and long strings unfolded."""
        return flat(self.file.columns[column])

    def read(self, column: str, how: Callable[[Any], Read]) -> tuple[Any, Read]:
        """The column, and what `how` makes of it. Raises DataError for a type it does not read."""
        raw = self.flat(column)
        try:
            return raw, how(raw)
        except pa.ArrowException:
            label = self.file.label
            raise DataError(f"{label}: {column} must hold numbers, not {raw.type}") from None

    def refuse(self, wrong: Mask, raw: Any, column: str, *, rule: str, remedy: str = "") -> None:
        """The rows with a wrong cell are bad. Raises DataError for the first where none may be."""
        remedy = remedy and f"; {remedy}"

        def place_and_rule(row: int) -> str:
            got = delimited.shown(raw[row].as_py())
            return f"{self.file.place(row)}: {column} must {rule}, got {got}{remedy}"

        self._bad.check(wrong & self.good, place_and_rule)
        self.good &= ~wrong


def ids(cells: Cells, column: str) -> pa.Array:
    """The ids as text. Raises DataError for a missing id or a type that cannot be an id."""
    raw, texts = plain_text(cells, column)
    shown = raw if raw_ids.is_text(raw.type) else texts
    cells.refuse(mask(texts.is_null()), shown, column, rule="not be empty")
    one_line(cells, texts, texts, column)
    return texts


def plain_text(cells: Cells, column: str) -> tuple[Any, pa.Array]:
    """The cells, and as text or whole numbers the text of each, null where there is nothing.

    Raises DataError for others.
    """
    raw = cells.flat(column)
    if not raw_ids.can_be_ids(raw.type):
        label = cells.file.label
        raise DataError(f"{label}: {column} must hold text or whole numbers, not {raw.type}")
    texts, refused = raw_ids.of_column(raw)
    cells.refuse(refused, raw, column, rule="be a whole number or text")
    return raw, texts


def one_line(cells: Cells, text: Any, raw: Any, column: str) -> None:
    """Refuse line breaks: a quote without its partner makes one long cell, and no other error."""
    cells.refuse(broken(text), raw, column, rule="be on one line (is a quote missing?)")


def broken(text: Any) -> Mask:
    """Where there is a line break. Two searches take half the time of one for either."""
    found = pc.or_(pc.match_substring(text, "\n"), pc.match_substring(text, "\r"))
    return mask(pc.fill_null(found, False))


def mask(array: Any) -> Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=bool)


def feature_values(cells: Cells, features: Sequence[Wanted]) -> dict[str, pa.Array]:
    """Columns `feature:NAME` of the types in READ. Raises DataError as `Cells.refuse`."""
    read = {"categorical": _category, "multi": _categories, "numeric": _number}
    return {one.column: read[one.feature.kind](cells, one) for one in features}


def _category(cells: Cells, one: Wanted) -> pa.Array:
    raw = cells.flat(one.source)
    if pa.types.is_boolean(raw.type):
        return raw.cast(pa.string())
    _, text = plain_text(cells, one.source)
    one_line(cells, text, text, one.source)
    return text


def _categories(cells: Cells, one: Wanted) -> pa.Array:
    """Lists of a Parquet column as they are, or of text between separators; null for none."""
    raw = cells.flat(one.source)
    if any(is_of(raw.type) for is_of in LISTS):
        lists = _cast(raw, cells, one)
        missing = np.asarray(pc.fill_null(pc.equal(pc.list_value_length(lists), 0), True))
    else:
        raw = _category(cells, one)
        lists = pc.split_pattern(raw, one.separator)
        missing = np.asarray(raw.is_null())
    part = pc.list_flatten(lists)
    row = np.asarray(pc.list_parent_indices(lists))
    plain = raw_ids.of_column(part).texts
    empty = _has(row[mask(plain.is_null())], len(raw))
    rule = f"be categories separated by {one.separator!r}, none of them empty (or an empty cell)"
    cells.refuse(empty, raw, one.source, rule=rule)
    torn = _has(row[broken(part)], len(raw))
    cells.refuse(torn, raw, one.source, rule="hold categories without line breaks")
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    starts = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
    return pa.ListArray.from_arrays(starts, plain, mask=pa.array(missing))


def _cast(raw: Any, cells: Cells, one: Wanted) -> pa.Array:
    kind = raw.type.value_type
    if not (pa.types.is_integer(kind) or raw_ids.is_text(kind)):
        raise DataError(
            f"{cells.file.label}: {one.source} must hold lists of text or whole numbers, "
            f"not {raw.type}"
        )
    return raw.cast(READ["multi"])


def _has(rows: Any, length: int) -> Mask:
    return np.bincount(rows, minlength=length).astype(bool)


def _number(cells: Cells, one: Wanted) -> pa.Array:
    raw, (number, wrong) = cells.read(one.source, numbers)
    wrong |= np.abs(number) > LARGEST
    cells.refuse(wrong, raw, one.source, rule="be a finite number (or empty, if missing)")
    return pa.array(number, mask=wrong | np.isnan(number))
