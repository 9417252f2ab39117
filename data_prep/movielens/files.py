"""The raw layouts of the MovieLens releases, read into one form."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep import ids
from data_prep.read import delimited
from data_prep.read.delimited import Layout
from data_prep.read.raw_files import RawFiles
from recsys_moe.schema import DataError

_INT, _FLOAT, _TEXT = pa.int64(), pa.float32(), pa.string()
_RATINGS = {"user": _INT, "item": _INT, "rating": _FLOAT, "timestamp": _INT}
_MOVIES = {"item": _INT, "title": _TEXT, "genres": _TEXT}
_USERS_100K = {"user": _INT, "age": _INT, "gender": _TEXT, "occupation": _TEXT, "zip": _TEXT}
_USERS_1M = {"user": _INT, "gender": _TEXT, "age": _INT, "occupation": _INT, "zip": _TEXT}
_CSV_NAMES = {"userId": "user", "movieId": "item"}
_NO_GENRE = "(no genres listed)"


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


def by_id(files: RawFiles, name: str, layout: Layout | None = None) -> pa.Table:
    """A file with one row per id, which is its first column."""
    label = files.label(name)
    table = _our_names(delimited.read(files.read(name), layout or _LAYOUTS[name], label))
    ids.refuse_repeated(table, table.column_names[0], label)
    return table


def _our_names(table: pa.Table) -> pa.Table:
    return table.rename_columns([_CSV_NAMES.get(name, name) for name in table.column_names])


def ratings(files: RawFiles, name: str, low: float, high: float) -> pa.Table:
    """user, item, rating, timestamp.

    Raises DataError naming the line of a rating off the scale or given twice.
    The scale has whole stars from 1, or half stars from 0.5: `low` is its step too.
    """
    data, label, layout = files.read(name), files.label(name), _LAYOUTS[name]
    table = _our_names(delimited.read(data, layout, label))
    rating = table["rating"].to_numpy()
    valid = (rating >= low) & (rating <= high) & (rating / low == np.floor(rating / low))
    if not valid.all():
        row = int(np.argmin(valid))
        line = delimited.line_of_row(data, layout, row, label)
        raise DataError(
            f"{label}, line {line}: rating must be one of {low:g}, {2 * low:g}, ..., {high:g}, "
            f"got {rating[row]:g}"
        )
    (user_code, _), (item_code, items) = ids.encode(table["user"]), ids.encode(table["item"])
    again = ids.first_repeat(user_code * len(items) + item_code)
    if again is not None:
        line = delimited.line_of_row(data, layout, again, label)
        user, item = table["user"][again], table["item"][again]
        raise DataError(
            f"{label}, line {line}: user {user} has rated item {item} before; "
            "leave one line per pair"
        )
    return table


def movies(files: RawFiles, name: str) -> pa.Table:
    """item, title, year, genres; the year from the end of a title like "Toy Story (1995)"."""
    table = _movies_100k(files, name) if name == "u.item" else by_id(files, name)
    title, genres = table["title"], table["genres"]
    year = pc.struct_field(pc.extract_regex(title, r"\((?P<year>\d{4})\)\s*$"), "year")
    known = pc.if_else(pc.is_in(genres, pa.array(["", _NO_GENRE])), None, genres)
    columns = {"item": table["item"], "title": title, "year": year.cast(pa.int32())}
    return pa.table({**columns, "genres": known})


def _movies_100k(files: RawFiles, name: str) -> pa.Table:
    """u.item, whose last columns are one flag per line of u.genre."""
    genres = by_id(files, "u.genre").sort_by("number")["genre"].to_pylist()
    texts = dict.fromkeys(("title", "released", "video", "url"), _TEXT)
    flags = {f"flag {genre}": _INT for genre in genres}
    table = by_id(files, name, Layout(separator="|", columns={"item": _INT, **texts, **flags}))
    columns = [
        pc.if_else(pc.equal(table[flag], 1), genre, None)
        for flag, genre in zip(flags, genres, strict=True)
    ]
    joined = pc.binary_join_element_wise(*columns, "|", null_handling="skip")
    return table.append_column("genres", joined)
