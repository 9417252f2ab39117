"""Files of users and of items, with a row for each: features, titles and more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep import ids
from data_prep.features.fitting import Fitted, note
from data_prep.features.spec import READ, Wanted, of_entity
from data_prep.ids import Index, Ints
from data_prep.read import delimited
from data_prep.read.bad_rows import BadRows
from data_prep.table import files as table_files
from data_prep.table.cells import Cells, feature_values
from data_prep.table.cells import ids as id_cells
from data_prep.table.files import TableFile
from data_prep.table.frame import Place
from data_prep.table.spec import Request
from recsys_moe.encodings import UTF8
from recsys_moe.schema import DataError

PLAIN_NUMBER = r"^-?(0|[1-9][0-9]{0,14})([.][0-9]+)?([eE][+-]?[0-9]{1,2})?$"
"""Up to 15 digits before the point: so many a float64 keeps."""


def of_users(request: Request) -> pa.Table | None:
    """Their features by `user`."""
    asked = of_entity(request.features, "user")
    path = request.user_features
    return None if path is None else _features(path, "user", asked, request)


def of_items(request: Request) -> pa.Table | None:
    """What --items and --item-features say of them by `item`."""
    asked = of_entity(request.features, "item")
    known, path = (
        item_features(request.items, request.item, request.encoding),
        request.item_features,
    )
    if path is None:
        return known
    more = _features(path, "item", asked, request)
    return more if known is None else _merged(known, more, "item")


def _features(path: Place, entity: str, asked: tuple[Wanted, ...], request: Request) -> pa.Table:
    """`entity`, the ids of the column of the rows as text, each once, and the columns
    `feature:NAME`.

    Raises DataError for a wrong cell, and for an id that has several rows which differ.
    """
    key = request.user if entity == "user" else request.item
    columns = list(dict.fromkeys([key, *(one.source for one in asked)]))
    files = table_files.read(path, columns, BadRows(), request.encoding)
    cells = [Cells(file) for file in files]
    table = pa.concat_tables(
        pa.table({entity: id_cells(one, key), **feature_values(one, asked)}) for one in cells
    )
    codes, _ = ids.encode(table[entity])
    firsts = ids.one_per_value(codes)
    if len(firsts) < len(table):
        _check_repeats(table, codes, files, asked)
    return table.take(pa.array(firsts))


def _check_repeats(
    table: pa.Table, codes: Index, files: list[TableFile], asked: tuple[Wanted, ...]
) -> None:
    """Raises DataError for a row that differs from the first one of the same id."""
    order = np.argsort(codes, kind="stable")
    first = order[np.searchsorted(codes[order], codes)]
    said = [_numbered(table[one.column], one) for one in asked]
    other = np.flatnonzero(np.any([number != number[first] for number in said], axis=0))
    if len(other):
        row, entity = int(other[0]), asked[0].entity
        raise DataError(
            f"{_place(files, row)}: {entity} {table[entity][row].as_py()!r} has other features "
            f"than in {_place(files, int(first[row]))}; leave one row per {entity}"
        )


def _numbered(values: pa.ChunkedArray, one: Wanted) -> Ints:
    """The same number where the values say the same: lists are sets, and null is a value too."""
    if one.feature.kind == "multi":
        known = note(values).categories
        feature = replace(one.feature, size=len(known))
        sets = Fitted(entity=one.entity, feature=feature, vocabulary=known).encode(values)
        values = pc.binary_join(sets.cast(READ["multi"]), " ")
    whole = ids.one_chunk(values)
    return np.asarray(whole.dictionary_encode(null_encoding="encode").indices).astype(np.int64)


def _place(files: list[TableFile], row: int) -> str:
    for file in files:
        if row < len(file.columns):
            return file.place(row)
        row -= len(file.columns)
    raise IndexError(row)


def _merged(known: pa.Table, more: pa.Table, key: str) -> pa.Table:
    """One table of what either has, with a row for each id of either."""
    taken = set(known.column_names) & set(more.column_names) - {key}
    if taken:
        raise DataError(f"the file of --{key}s must not have a column {min(taken)!r}; rename it")
    both = pc.unique(pa.concat_arrays([table[key].combine_chunks() for table in (known, more)]))
    joined, others = ids.align(known, key, both), ids.align(more, key, both).drop_columns([key])
    for name in others.column_names:
        joined = joined.append_column(name, others[name])
    return joined


def item_features(items: Place | None, key: str, encoding: str = UTF8) -> pa.Table | None:
    """All columns of the items' file with `key` first, as `item`.

    Columns of a text file that hold plain numbers only become numbers, for `recommend --where`.
    """
    if items is None:
        return None
    files = table_files.read(items, None, BadRows(), encoding)
    tables = []
    for file in files:
        delimited.check_columns(file.label, [key], file.columns.column_names)
        rest = file.columns.drop_columns([key])
        tables.append(rest.add_column(0, "item", id_cells(Cells(file), key)))
    table = pa.concat_tables(tables)
    if len(set(table.column_names) | {"item_index"}) <= len(table.column_names):
        raise DataError(f"{items}: columns must not be named item or item_index, nor repeat")
    if (again := ids.repeats(ids.encode(table["item"])[0])).any():
        item = table["item"][int(np.argmax(again))].as_py()
        raise DataError(f"{items}: item {item!r} has more than one row; leave one row per id")
    if all(file.is_text for file in files):  # Parquet says itself what a column is
        for place, name in enumerate(table.column_names):
            if name != "item":
                cells = _typed(table[name], numbers=name != "title")
                table = table.set_column(place, name, cells)
    return table


def _typed(cells: pa.ChunkedArray, *, numbers: bool) -> pa.ChunkedArray:
    """Empty cells become nulls, and plain numbers int64 or else float64.

    A column that has a value like 007 or 12345678901234567890 in it is text: as a number it would
    not be what was written.
    """
    text = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
    is_plain = numbers and pc.all(pc.match_substring_regex(text, PLAIN_NUMBER)).as_py()
    if not is_plain or text.null_count == len(text):
        return text
    try:
        return text.cast(pa.int64())
    except pa.ArrowInvalid:
        return text.cast(pa.float64())
