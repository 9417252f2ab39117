"""The raw layouts of the MovieLens releases, read into one form."""

from __future__ import annotations

from dataclasses import dataclass

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
_CSV_NAMES = {"userId": "user", "movieId": "item"}
_NO_GENRE = "(no genres listed)"


@dataclass(frozen=True, kw_only=True)
class Movielens:
    """One release.

    ratings: user, item, rating, timestamp; movies: item, title, year, genres; users: user, ...
    """

    ratings: pa.Table
    movies: pa.Table
    users: pa.Table | None
    file: str
    """Name of the ratings file, for messages."""


def read_100k(files: RawFiles, low: float, high: float) -> Movielens:
    """u.data, u.item, u.user, u.genre of ml-100k."""
    users = Layout(
        separator="|",
        columns={"user": _INT, "age": _INT, "gender": _TEXT, "occupation": _TEXT, "zip": _TEXT},
    )
    return Movielens(
        ratings=_ratings(
            files, "u.data", Layout(separator="\t", columns=_RATINGS), low=low, high=high
        ),
        movies=_movies_100k(files),
        users=_read(files, "u.user", users),
        file=files.label("u.data"),
    )


def read_1m(files: RawFiles, low: float, high: float) -> Movielens:
    """ratings.dat, movies.dat, users.dat of ml-1m."""
    users = Layout(
        separator="::",
        columns={"user": _INT, "gender": _TEXT, "age": _INT, "occupation": _INT, "zip": _TEXT},
    )
    return _read_dat(files, _read(files, "users.dat", users), low, high)


def read_10m(files: RawFiles, low: float, high: float) -> Movielens:
    """ratings.dat, movies.dat of ml-10M100K; this release and later ones describe no users."""
    return _read_dat(files, None, low, high)


def read_csv(files: RawFiles, low: float, high: float) -> Movielens:
    """ratings.csv, movies.csv of ml-latest-small and ml-20m onwards."""
    ratings = _ratings(files, "ratings.csv", _csv_layout(_RATINGS), low=low, high=high)
    return Movielens(
        ratings=ratings,
        movies=_with_year(_read(files, "movies.csv", _csv_layout(_MOVIES))),
        users=None,
        file=files.label("ratings.csv"),
    )


def _read_dat(files: RawFiles, users: pa.Table | None, low: float, high: float) -> Movielens:
    layout = Layout(separator="::", columns=_RATINGS)
    movies = Layout(separator="::", columns=_MOVIES)
    return Movielens(
        ratings=_ratings(files, "ratings.dat", layout, low=low, high=high),
        movies=_with_year(_read(files, "movies.dat", movies)),
        users=users,
        file=files.label("ratings.dat"),
    )


def _csv_layout(columns: dict[str, pa.DataType]) -> Layout:
    in_file = {ours: theirs for theirs, ours in _CSV_NAMES.items()}
    renamed = {in_file.get(name, name): kind for name, kind in columns.items()}
    return Layout(separator=",", columns=renamed, header=True, quoted=True)


def _read(files: RawFiles, name: str, layout: Layout) -> pa.Table:
    """A file with one row per id, which is its first column."""
    table = _our_names(delimited.read(files.read(name), layout, files.label(name)))
    ids.refuse_repeated(table, table.column_names[0], files.label(name))
    return table


def _our_names(table: pa.Table) -> pa.Table:
    return table.rename_columns([_CSV_NAMES.get(name, name) for name in table.column_names])


def _ratings(files: RawFiles, name: str, layout: Layout, *, low: float, high: float) -> pa.Table:
    """The ratings. Raises DataError naming the line of a rating off the scale or given twice.

    The scale has whole stars from 1, or half stars from 0.5: `low` is its step too.
    """
    data, label = files.read(name), files.label(name)
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
    again = ids.repeated_pair(table["user"], table["item"])
    if again is not None:
        line = delimited.line_of_row(data, layout, again, label)
        user, item = table["user"][again], table["item"][again]
        raise DataError(
            f"{label}, line {line}: user {user} has rated item {item} before; "
            "leave one line per pair"
        )
    return table


def _movies_100k(files: RawFiles) -> pa.Table:
    """u.item, whose last columns are one flag per line of u.genre."""
    genre = Layout(separator="|", columns={"genre": _TEXT, "number": _INT})
    names = _read(files, "u.genre", genre).sort_by("number")["genre"].to_pylist()
    flags = {f"flag {name}": _INT for name in names}
    texts = dict.fromkeys(("title", "released", "video", "url"), _TEXT)
    table = _read(files, "u.item", Layout(separator="|", columns={"item": _INT, **texts, **flags}))
    columns = [
        pc.if_else(pc.equal(table[flag], 1), name, None)
        for flag, name in zip(flags, names, strict=True)
    ]
    genres = pc.binary_join_element_wise(*columns, "|", null_handling="skip")
    movies = table.select(["item", "title"]).append_column("genres", genres)
    return _with_year(movies)


def _with_year(movies: pa.Table) -> pa.Table:
    """Adds `year` from the end of the title, as in "Toy Story (1995)"; null where there is none."""
    title = movies["title"]
    year = pc.struct_field(pc.extract_regex(title, r"\((?P<year>\d{4})\)\s*$"), "year")
    genres = movies["genres"]
    known = pc.if_else(pc.is_in(genres, pa.array(["", _NO_GENRE])), None, genres)
    return pa.table(
        {
            "item": movies["item"],
            "title": title,
            "year": year.cast(pa.int32()),
            "genres": known,
        }
    )
