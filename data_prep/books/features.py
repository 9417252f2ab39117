"""Titles and readers of Book-Crossing, where the files with them are there."""

from __future__ import annotations

import logging

import pyarrow as pa
import pyarrow.compute as pc

from data_prep import ids
from data_prep.features import spec
from data_prep.features.spec import Wanted, wanted
from data_prep.read import quoted_lines
from data_prep.read.raw_files import RawFiles
from recsys_moe.schema import DataError

log = logging.getLogger("recsys_moe.prepare")
_BOOKS_FILES, _USERS_FILES = ("BX-Books.csv", "Books.csv"), ("BX-Users.csv", "Users.csv")
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

OFFERED = (
    wanted("user", "age", "numeric", "likely age"),
    wanted("user", "country", "categorical"),
    wanted("item", "author", "categorical", "plain author"),
    wanted("item", "publisher", "categorical", "plain publisher"),
    wanted("item", "year", "numeric", "likely year"),
)
AGES, YEARS = (5, 100), (1800, 2005)
"""What else is written there (ages of 0 and 244, years of 0 and 2050) counts as not known: the
records were collected in August and September 2004 (Ziegler et al. 2005)."""


def read(
    files: RawFiles, repair_isbn: bool
) -> tuple[pa.Table | None, pa.Table | None, dict[str, int]]:
    """Users, books (None where there is no file), and the broken lines of each file."""
    report: dict[str, int] = {}
    users = _optional(files, _USERS_FILES, _USERS, report)
    books = _optional(files, _BOOKS_FILES, _BOOKS, report)
    if users is not None:
        whole = pc.match_substring_regex(users["user"], r"^\d{1,18}$")
        users = _numbers(_numbers(users.filter(whole), "user", pa.int64()), "age", pa.int32())
        users = _first_per_id(users, "user")
    if books is not None:
        if repair_isbn:
            fixed, _ = repair_isbns(books["item"].combine_chunks())
            books = books.set_column(0, "item", fixed)
        title = pc.replace_substring(books["title"], "&amp;", "&")
        books = _numbers(books.set_column(1, "title", title), "year", pa.int32())
        books = _first_per_id(books, "item")
    return users, books, report


def chosen(names: str | None, users: pa.Table | None, books: pa.Table | None) -> tuple[Wanted, ...]:
    """Those of `names` (None: none); "all" are those whose file is there.

    Raises DataError for one whose file is not there, or when there is none.
    """
    missing = {
        entity: files[0]
        for entity, table, files in (("user", users, _USERS_FILES), ("item", books, _BOOKS_FILES))
        if table is None
    }
    asked = spec.chosen(names, OFFERED)
    found = tuple(one for one in asked if one.entity not in missing)
    if asked and (not found or (names != spec.ALL and len(found) < len(asked))):
        first = next(one for one in asked if one.entity in missing)
        raise DataError(
            f"{spec.OPTION} {first.feature.name} needs {missing[first.entity]}, which is not in "
            "--source; add the file or name others"
        )
    return found


def with_users(users: pa.Table | None, asked: tuple[Wanted, ...]) -> pa.Table | None:
    """`users` with the columns `feature:NAME` that are asked for."""
    if users is None:
        return None
    more = {"likely age": _within(users["age"], *AGES), "country": _country(users["location"])}
    return _with(users, more, "user", asked)


def with_books(books: pa.Table | None, asked: tuple[Wanted, ...]) -> pa.Table | None:
    """`books` with the columns `feature:NAME` that are asked for."""
    if books is None:
        return None
    more = {"likely year": _within(books["year"], *YEARS)}
    for name in ("author", "publisher"):
        text = pc.replace_substring(books[name], "&amp;", "&")
        more[f"plain {name}"] = pc.if_else(pc.equal(text, "NULL"), None, text)
    return _with(books, more, "item", asked)


def _with(
    table: pa.Table, more: dict[str, pa.ChunkedArray], entity: str, asked: tuple[Wanted, ...]
) -> pa.Table:
    wider = table
    for name, column in more.items():
        wider = wider.append_column(name, column)
    return spec.as_read(wider, entity, asked).drop_columns(list(more))


def _within(numbers: pa.ChunkedArray, low: int, high: int) -> pa.ChunkedArray:
    known = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
    return pc.if_else(known, numbers, None)


def _country(location: pa.ChunkedArray) -> pa.ChunkedArray:
    """What follows the last comma of "city, region, country"; null for nothing and for n/a."""
    last = pc.struct_field(pc.extract_regex(location, r",(?P<country>[^,]*)$"), "country")
    country = pc.utf8_lower(pc.utf8_trim(last, ' ."'))
    return pc.if_else(pc.is_in(country, pa.array(["", "n/a", "null"])), None, country)


def _optional(
    files: RawFiles,
    names: tuple[str, ...],
    columns: dict[str, tuple[str, ...]],
    report: dict[str, int],
) -> pa.Table | None:
    name = files.find(*names)
    if name is None:
        log.info("no %s: continuing without it", names[0])
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


def repair_isbns(raw: pa.Array) -> tuple[pa.Array, int]:
    """ISBNs as ISBN-10 where possible, and how many entries changed.

    Blanks, dashes and other signs are dropped, letters become capitals, and a 978 ISBN-13 turns
    into its ISBN-10. Anything else without a right ISBN-10 check digit stays as it was.
    """
    encoded = raw.dictionary_encode()
    spelled = pc.replace_substring_regex(pc.utf8_upper(encoded.dictionary), "[^0-9X]", "")
    fixed = [
        _isbn10(bare) or before
        for bare, before in zip(spelled.to_pylist(), encoded.dictionary.to_pylist(), strict=True)
    ]
    repaired = pa.array(fixed, type=pa.string()).take(encoded.indices)
    return repaired, int(pc.sum(pc.not_equal(repaired, raw)).as_py() or 0)


def _isbn10(bare: str) -> str | None:
    """`bare` as an ISBN-10 when its check digit is right, else None."""
    if len(bare) == 13 and bare.startswith("978") and _valid13(bare):
        return bare[3:12] + _check_digit(bare[3:12])
    if len(bare) == 10 and bare[:9].isdigit() and bare[9] == _check_digit(bare[:9]):
        return bare
    return None


def _check_digit(nine: str) -> str:
    """Weights 10..2 for the nine digits; all ten add up to a multiple of 11, X being 10."""
    total = sum(weight * int(digit) for weight, digit in zip(range(10, 1, -1), nine, strict=True))
    return "0123456789X"[-total % 11]


def _valid13(bare: str) -> bool:
    """Weights 1, 3, 1, 3, ... add up to a multiple of 10."""
    if not bare.isdigit():
        return False
    return sum(int(digit) * (1, 3)[place % 2] for place, digit in enumerate(bare)) % 10 == 0
