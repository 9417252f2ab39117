"""Cells of a user's table as values of features: text, lists of text, numbers; null for none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.features.fitting import LARGEST
from data_prep.features.spec import READ, Wanted
from data_prep.read.bad_rows import Mask
from data_prep.table.cells import Cells, broken, mask, numbers, one_line, plain_text
from recsys_moe import raw_ids
from recsys_moe.schema import DataError


def values(cells: Cells, features: Sequence[Wanted]) -> dict[str, pa.Array]:
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
    if pa.types.is_list(raw.type) or pa.types.is_large_list(raw.type):
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
    if not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ):
        raise DataError(
            f"{cells.file.label}: {one.source} must hold lists of text or whole numbers, "
            f"not {raw.type}"
        )
    return raw.cast(READ["multi"])


def _has(rows: Any, length: int) -> Mask:
    return np.bincount(rows, minlength=length).astype(bool)


def _number(cells: Cells, one: Wanted) -> pa.Array:
    raw = cells.flat(one.source)
    number, wrong = numbers(raw, cells.file, one.source)
    wrong |= np.abs(number) > LARGEST
    cells.refuse(wrong, raw, one.source, rule="be a finite number (or empty, if missing)")
    return pa.array(number, mask=wrong | np.isnan(number))
