"""The raw layouts of the MovieLens releases, read into one form."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep import ids
from data_prep.read import delimited
from data_prep.read.bad_rows import BadRows
from data_prep.read.delimited import Layout
from data_prep.read.raw_files import RawFiles

_INT, _FLOAT, _TEXT = pa.int64(), pa.float32(), pa.string()
_RATINGS = {"user": _INT, "item": _INT, "rating": _FLOAT, "timestamp": _INT}
_MOVIES = {"item": _INT, "title": _TEXT, "genres": _TEXT}
_USERS_100K = {"user": _INT, "age": _INT, "gender": _TEXT, "occupation": _TEXT, "zip": _TEXT}
_USERS_1M = {"user": _INT, "gender": _TEXT, "age": _INT, "occupation": _INT, "zip": _TEXT}
_CSV_NAMES = {"userId": "user", "movieId": "item"}
_NO_GENRE = "(no genres listed)"
RELEASED, WORK = "released", "occupation in words"
OCCUPATIONS = (
    *("other", "academic/educator", "artist", "clerical/admin", "college/grad student"),
    *("customer service", "doctor/health care", "executive/managerial", "farmer", "homemaker"),
    *("K-12 student", "lawyer", "programmer", "retired", "sales/marketing", "scientist"),
    *("self-employed", "technician/engineer", "tradesman/craftsman", "unemployed", "writer"),
)
"""Codes 0 to 20 of 1m, whose README lists them; 0 is "other" or not specified."""


def _csv(**columns: pa.DataType) -> Layout:
    return Layout(separator=",", columns=columns, header=True, quoted=True)


_LAYOUTS = {
    "u.data": Layout(separator="\t", columns=_RATINGS),
    "u.genre": Layout(separator="|", columns={"genre": _TEXT, "number": _INT}),
    "u.user": Layout(separator="|", columns=_USERS_100K),
    "ratings.dat": Layout(separator="::", columns=_RATINGS),
    "movies.dat": Layout(separator="::", columns=_MOVIES),
    "users.dat": Layout(separator="::", columns=_USERS_1M),
    "ratings.csv": _csv(userId=_INT, movieId=_INT, rating=_FLOAT, timestamp=_INT),
    "movies.csv": _csv(movieId=_INT, title=_TEXT, genres=_TEXT),
}
"""100k has the files u.*, 1m and 10m *.dat (10m no users), all others *.csv."""


def by_id(files: RawFiles, name: str, bad: BadRows, layout: Layout | None = None) -> pa.Table:
    """A file with one row per id, which is its first column; without `bad` rows."""
    label, layout = files.label(name), layout or _LAYOUTS[name]
    table, data = delimited.read_lines(files.read(name), layout, label, bad)
    table = _our_names(table)
    key = table.column_names[0]
    again = ids.repeats(ids.encode(table[key])[0])

    def more_than_one(row: int) -> str:
        line = delimited.line_of_row(data, layout, row, label)
        return (
            f"{label}, line {line}: {key} {table[key][row].as_py()!r} has more than one row; "
            "leave one row per id"
        )

    bad.check(again, more_than_one)
    return table.filter(~again) if again.any() else table


def _our_names(table: pa.Table) -> pa.Table:
    return table.rename_columns([_CSV_NAMES.get(name, name) for name in table.column_names])


def ratings(files: RawFiles, name: str, low: float, high: float, bad: BadRows) -> pa.Table:
    """user, item, rating, timestamp, without `bad` rows.

    Those have a rating off the scale or given before; DataError names the line. The scale has whole
    stars from 1, or half stars from 0.5: `low` is its step too.
    """
    label, layout = files.label(name), _LAYOUTS[name]
    table, data = delimited.read_lines(files.read(name), layout, label, bad)
    table = _our_names(table)
    rating = table["rating"].to_numpy()

    def place(row: int) -> str:
        return f"{label}, line {delimited.line_of_row(data, layout, row, label)}"

    scale = f"{low:g}, {2 * low:g}, ..., {high:g}"
    wrong = ~((rating >= low) & (rating <= high) & (rating / low == np.floor(rating / low)))
    bad.check(
        wrong, lambda row: f"{place(row)}: rating must be one of {scale}, got {rating[row]:g}"
    )
    (user, _), (item, items) = ids.encode(table["user"]), ids.encode(table["item"])
    pairs = np.where(wrong, -1 - np.arange(len(rating)), ids.pair_keys(user, item, len(items)))
    again = ids.repeats(pairs)
    bad.check(
        again,
        lambda row: (
            f"{place(row)}: user {table['user'][row]} has already rated item {table['item'][row]}; "
            "leave one line per pair"
        ),
    )
    return table.filter(~(wrong | again)) if bad.count else table


def movies(files: RawFiles, name: str, bad: BadRows) -> pa.Table:
    """item, title, year, genres; the year from the end of a title like "Toy Story (1995)".

    And RELEASED, the year of release: of the date where there is one (100k), else that year.
    """
    table = _movies_100k(files, name, bad) if name == "u.item" else by_id(files, name, bad)
    title, genres = table["title"], table["genres"]
    year = pc.struct_field(pc.extract_regex(title, r"\((?P<year>\d{4})\)\s*$"), "year")
    known = pc.if_else(pc.is_in(genres, pa.array(["", _NO_GENRE])), None, genres)
    columns = {"item": table["item"], "title": title, "year": year.cast(pa.int32())}
    dated = columns["year"]
    if name == "u.item":  # dates like 01-Jan-1995
        year = pc.extract_regex(table["released"], r"-(?P<year>\d{4})$")
        dated = pc.struct_field(year, "year").cast(pa.int32())
    return pa.table({**columns, "genres": known, RELEASED: dated})


def users(files: RawFiles, name: str, bad: BadRows) -> pa.Table:
    """The users' columns in the release; in 1m also WORK, in words (an unknown code as it is)."""
    table = by_id(files, name, bad)
    if name != "users.dat":
        return table
    codes = table["occupation"]
    known = pc.and_(pc.greater_equal(codes, 0), pc.less(codes, len(OCCUPATIONS)))
    words = pc.take(pa.array(OCCUPATIONS), pc.if_else(known, codes, None))
    return table.append_column(WORK, pc.coalesce(words, codes.cast(_TEXT)))


def _movies_100k(files: RawFiles, name: str, bad: BadRows) -> pa.Table:
    """u.item, whose last columns are one flag per line of u.genre."""
    genres = by_id(files, "u.genre", bad).sort_by("number")["genre"].to_pylist()
    texts = dict.fromkeys(("title", "released", "video", "url"), _TEXT)
    flags = {f"flag {genre}": _INT for genre in genres}
    layout = Layout(separator="|", columns={"item": _INT, **texts, **flags})
    table = by_id(files, name, bad, layout)
    columns = [
        pc.if_else(pc.equal(table[flag], 1), genre, None)
        for flag, genre in zip(flags, genres, strict=True)
    ]
    # The first "" is for pyarrow (26.0), which leaves out rows that are null in all columns.
    joined = pc.binary_join_element_wise("", *columns, "|", null_handling="skip")
    return table.append_column("genres", pc.utf8_ltrim(joined, "|"))
