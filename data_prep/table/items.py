"""What is known of the items, beside the rows: titles and features from a file of their own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from data_prep import ids
from data_prep.read import delimited
from data_prep.read.bad_rows import BadRows
from data_prep.table import files as table_files
from data_prep.table.cells import Cells
from data_prep.table.cells import ids as id_cells
from recsys_moe.encodings import UTF8
from recsys_moe.schema import DataError

PLAIN_NUMBER = r"^-?(0|[1-9][0-9]{0,14})([.][0-9]+)?([eE][+-]?[0-9]{1,2})?$"
"""Up to 15 digits before the point: so many a float64 keeps."""


def item_features(items: Path | None, key: str, encoding: str = UTF8) -> pa.Table | None:
    """All columns of the items' file with `key` first, as `item`.

    Columns of a text file that hold plain numbers only become numbers, for `recommend --where`.
    """
    if items is None:
        return None
    files = table_files.read(Path(items), None, BadRows(), encoding)
    tables = []
    for file in files:
        delimited.check_columns(file.label, [key], file.columns.column_names)
        rest = file.columns.drop_columns([key])
        tables.append(rest.add_column(0, "item", id_cells(Cells(file), key)))
    table = pa.concat_tables(tables)
    if len(set(table.column_names) | {"item_index"}) <= len(table.column_names):
        raise DataError(f"{items}: columns must not be named item or item_index, nor repeat")
    ids.refuse_repeated(table, "item", str(items))
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
