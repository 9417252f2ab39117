"""A small text classification task: which genre do these film titles share?

A text is `TITLES` random titles of films of one genre, without their years, from `FILMS` films per
genre that have exactly one of the four genres. Splits share films: the model learns the genre of
each title, since its words hardly tell, and is tested on other draws. Draws do not depend on the
seed.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from examples.moebert.rows import Rows, Splits, rows_of
from examples.moebert.words import Words, made_from
from recsys_moe.errors import DataError

GENRES = ("Drama", "Comedy", "Horror", "Action")
FILMS, TITLES, LENGTH = 250, 2, 24
COUNTS = {"train": 1200, "val": 300, "test": 800}
LEAST = 4
"""Times that a piece comes in training titles to be in the vocabulary."""
ITEM_GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance"),
    *("Sci-Fi", "Thriller", "War", "Western"),
)
"""Columns 5 to 23 of MovieLens-100K's u.item."""


def load(folder: Path, words: Words | None = None) -> tuple[Splits, Words]:
    """The splits, in ids of `words` or of a vocabulary made from the training titles.

    `folder`: of MovieLens-1M (movies.dat) or -100K (u.item). Raises DataError.
    """
    films = read(folder)
    shared = {name: _draw(films, name) for name in COUNTS}
    if words is None:
        words = made_from(sorted({t for texts, _ in shared["train"] for t in texts}), LEAST)
    rows: dict[str, Rows] = {}
    for name, drawn in shared.items():
        texts = [(" . ".join(titles), None) for titles, _ in drawn]
        rows[name] = rows_of(words.encode(texts, LENGTH), [label for _, label in drawn])
    return Splits(rows["train"], rows["val"], rows["test"], len(GENRES)), words


def read(folder: Path) -> list[list[str]]:
    """`FILMS` titles of each genre, or as many as there are. Raises DataError."""
    if (folder / "movies.dat").exists():
        pairs = [_movies_row(line) for line in _lines(folder / "movies.dat")]
    elif (folder / "u.item").exists():
        pairs = [_item_row(line) for line in _lines(folder / "u.item")]
    else:
        raise DataError(f"{folder} has no movies.dat or u.item; give a folder of MovieLens")
    films: list[set[str]] = [set() for _ in GENRES]
    for title, genres in pairs:
        own = [index for index, genre in enumerate(GENRES) if genre in genres]
        if len(own) == 1:
            films[own[0]].add(re.sub(r"\s*\(\d{4}\)\s*$", "", title))
    least = min(map(len, films))
    if least < TITLES:
        raise DataError(
            f"{folder} must have {TITLES} titles of each of {', '.join(GENRES)}, got {least}"
        )
    few = np.random.default_rng(0)
    ordered = [sorted(titles) for titles in films]
    return [[own[n] for n in few.permutation(len(own))[:FILMS]] for own in ordered]


def _draw(films: list[list[str]], split: str) -> list[tuple[list[str], int]]:
    """Texts of a split, each a list of titles and a label."""
    draws = np.random.default_rng([0, list(COUNTS).index(split)])
    labels = [n % len(GENRES) for n in range(COUNTS[split])]
    return [([str(t) for t in draws.choice(films[y], TITLES, replace=False)], y) for y in labels]


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="latin-1").splitlines() if line]


def _movies_row(line: str) -> tuple[str, list[str]]:
    parts = line.split("::")
    if len(parts) != 3:
        raise DataError(f"movies.dat must have 3 fields between ::, got {line[:60]!r}")
    return parts[1], parts[2].split("|")


def _item_row(line: str) -> tuple[str, list[str]]:
    parts = line.split("|")
    if len(parts) != 24:
        raise DataError(f"u.item must have 24 fields between |, got {line[:60]!r}")
    flags = zip(ITEM_GENRES, parts[5:], strict=True)
    return parts[1], [genre for genre, flag in flags if flag == "1"]
