"""Titles and readers of Book-Crossing, where the files with them are there."""

from __future__ import annotations

import logging

import pyarrow as pa
import pyarrow.compute as pc

from data_prep import ids
from data_prep.books import isbn
from data_prep.read import quoted_lines
from data_prep.read.raw_files import RawFiles

log = logging.getLogger("recsys_moe.prepare")
_BOOKS: dict[str, tuple[str, ...]] = {
    "item": ("ISBN",),
    "title": ("Book-Title", "Title"),
    "author": ("Book-Author", "Author"),
    "year": ("Year-Of-Publication", "Year"),
    "publisher": ("Publisher",),
}
_USERS: dict[str, tuple[str, ...]] = {
    "user": ("User-ID",),
    "location": ("Location",),
    "age": ("Age",),
}


def read(
    files: RawFiles, repair_isbn: bool
) -> tuple[pa.Table | None, pa.Table | None, dict[str, int]]:
    """Users, books (None where there is no file), and the broken lines of each file."""
    report: dict[str, int] = {}
    users = _optional(files, ("BX-Users.csv", "Users.csv"), _USERS, report)
    books = _optional(files, ("BX-Books.csv", "Books.csv"), _BOOKS, report)
    if users is not None:
        whole = pc.match_substring_regex(users["user"], r"^\d{1,18}$")
        users = _numbers(_numbers(users.filter(whole), "user", pa.int64()), "age", pa.int32())
        users = _first_per_id(users, "user")
    if books is not None:
        if repair_isbn:
            fixed, _ = isbn.repair(books["item"].combine_chunks())
            books = books.set_column(0, "item", fixed)
        title = pc.replace_substring(books["title"], "&amp;", "&")
        books = _numbers(books.set_column(1, "title", title), "year", pa.int32())
        books = _first_per_id(books, "item")
    return users, books, report


def _optional(
    files: RawFiles,
    names: tuple[str, ...],
    columns: dict[str, tuple[str, ...]],
    report: dict[str, int],
) -> pa.Table | None:
    name = files.find(*names)
    if name is None:
        log.info("no %s: goes on without", names[0])
        return None
    lines = quoted_lines.read(files, name, columns)
    report[f"broken_lines_{name}"] = lines.broken
    return lines.table.drop_columns(["line"])


def _numbers(table: pa.Table, column: str, kind: pa.DataType) -> pa.Table:
    """`column` as `kind`, null where it holds no whole number (Book-Crossing writes NULL)."""
    text = table[column]
    whole = pc.match_substring_regex(text, r"^\d{1,9}$" if kind == pa.int32() else r"^\d{1,18}$")
    numbers = pc.if_else(whole, text, None).cast(kind)
    return table.set_column(table.column_names.index(column), column, numbers)


def _first_per_id(table: pa.Table, key: str) -> pa.Table:
    codes, _ = ids.encode(table[key])
    return table.take(pa.array(ids.one_per_value(codes)))
