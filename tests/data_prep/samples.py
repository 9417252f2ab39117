"""Tiny made-up files in the official layouts, and what the tests read back."""

from __future__ import annotations

import functools
import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from data_prep import movielens
from recsys_moe.schema import SPLITS

prepare_subset = functools.partial(movielens.prepare, partial=True)
"""`prepare movielens --partial`, for files of a few rows."""

# (user, item, rating, timestamp): 8 users; items 10..19 are all rated, item 20 by nobody.
# User 1 rates 8 of the 10 rated items, so only 2 are left for its 8 wanted negatives.
RATINGS = [(1, 10 + n, 1 + n % 5, 100 + n) for n in range(8)] + [
    (user, 10 + (user * 3 + n * 2) % 10, 1 + (user + n) % 5, 1000 * user + n)
    for user in range(2, 9)
    for n in range(4)
]
TITLES = {item: f"Film {item} (19{item})" for item in range(10, 21)}
TITLES[10] = "Caf\u00e9: noir (1910)"
GENRES = ("unknown", "Action", "Drama")


def lines(path: Path, rows: list[str], encoding: str = "latin-1") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(row + "\n" for row in rows), encoding=encoding)


def write_dat(folder: Path, *, users: bool = True) -> Path:
    """The layout of 1m, and without users that of 10m."""
    lines(folder / "ratings.dat", ["::".join(map(str, row)) for row in RATINGS])
    lines(folder / "movies.dat", [f"{i}::{t}::Action|Drama" for i, t in TITLES.items()])
    if users:
        lines(folder / "users.dat", [f"{u}::F::25::{u}::0{u}110" for u in range(1, 9)])
    return folder


def write_100k(folder: Path) -> Path:
    lines(folder / "u.data", ["\t".join(map(str, row)) for row in RATINGS])
    lines(
        folder / "u.item", [f"{i}|{t}|01-Jan-1995||http://x/{i}|0|1|1" for i, t in TITLES.items()]
    )
    lines(folder / "u.user", [f"{u}|{20 + u}|M|writer|0{u}110" for u in range(1, 9)])
    lines(folder / "u.genre", [f"{name}|{n}" for n, name in enumerate(GENRES)] + [""])
    return folder


def write_csv(folder: Path) -> Path:
    """The layout of latest-small, 20m, 25m and 32m."""
    ratings = [",".join(map(str, row)) for row in RATINGS]
    lines(folder / "ratings.csv", ["userId,movieId,rating,timestamp", *ratings])
    movies = [f'{i},"{t}",Action|Drama' for i, t in TITLES.items()]
    lines(folder / "movies.csv", ["movieId,title,genres", *movies], encoding="utf-8")
    return folder


def zipped(folder: Path, archive: Path, inside: str) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zip_file:
        for path in sorted(folder.iterdir()):
            zip_file.write(path, f"{inside}/{path.name}")
    return archive


def columns(out: Path, name: str) -> dict[str, list[object]]:
    """Columns of a split, `users` or `items`, with None where a value is missing."""
    path = out / f"{name}.parquet" if name in ("users", "items") else out / name
    table: dict[str, list[object]] = pq.read_table(path).to_pydict()
    return table


def raw_rows(out: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every split as (raw user, raw item, labels...); None for an id outside the vocabulary."""
    users, items = columns(out, "users")["user"], columns(out, "items")["item"]
    found = {}
    for split in SPLITS:
        table = columns(out, split)
        table.pop("timestamp", None)
        user = [users[i] if i < len(users) else None for i in table.pop("user_index")]
        item = [items[i] if i < len(items) else None for i in table.pop("item_index")]
        found[split] = list(zip(user, item, *table.values(), strict=True))
    return found


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def chi_square(observed: np.ndarray, expected: float) -> float:
    """Sum of squared deviations over the expected count of equally likely cells."""
    return float(((observed - expected) ** 2 / expected).sum())


TABLE_TASKS = ["watch:binary=clicked", "rating:regression=stars"]
IDS = {"user": "who", "item": "what", "tasks": TABLE_TASKS}


def frame(rows: int = 40) -> pd.DataFrame:
    """Users u0..u7, items 000..009, clicked every third row, stars where clicked."""
    n = np.arange(rows)
    clicked = n % 3 == 0
    return pd.DataFrame(
        {
            "who": [f"u{k}" for k in n % 8],
            "what": [f"{k:03d}" for k in (n // 8 + 2 * n) % 10],
            "clicked": clicked.astype(int),
            "stars": np.where(clicked, 1 + n % 5, np.nan),
            "when": 1000 + n,
        }
    )


def save(data: pd.DataFrame, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        data.to_parquet(path, index=False)
    else:
        separator = "\t" if ".tsv" in path.name else ","
        data.to_csv(path, index=False, sep=separator)
    return path


def rows_of(out: Path) -> list[tuple[object, ...]]:
    return sorted((row for part in raw_rows(out).values() for row in part), key=str)
