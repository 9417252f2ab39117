"""Experts by genre: how often each is the first choice of a genre's examples.

Axes: N rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
from torch import Tensor

GENRES = "genres"
"""Column of items.parquet with names divided by `|`."""
FEWEST = 50
"""Rows a genre, or an expert, needs to be shown; below, shares are mostly chance."""
NAMED_GENRES = 2
NOTABLE = 1.25
"""Times as often as on average from which a genre is named for an expert."""


@dataclass(frozen=True)
class GenreBreakdown:
    """Which genres go to which expert, for one task."""

    task: str
    genres: list[str]
    """Most rows first."""
    rows: list[int]
    """Rows of the sample whose item has the genre; an item with two genres counts in both."""
    share: list[list[float]]
    """[expert][genre]: share of the genre's rows whose top expert this is."""
    overall: list[float]
    """Share of all rows of known genre whose top expert this is."""
    lift: list[list[float | None]]
    """share / overall: 1 is as often as on average; None for an expert that is the first choice of
    fewer than FEWEST rows."""

    def notable(self, expert: int) -> list[tuple[str, float]]:
        """Up to NAMED_GENRES genres with a lift from NOTABLE on, the largest lifts first."""
        lifts = zip(self.genres, self.lift[expert], strict=True)
        notable = [(genre, lift) for genre, lift in lifts if lift and lift >= NOTABLE]
        return sorted(notable, key=lambda pair: (-pair[1], pair[0]))[:NAMED_GENRES]

    @property
    def strongest(self) -> tuple[float, int, str] | None:
        """The largest lift, its expert and genre; None where every expert has too few rows."""
        cells = (
            (lift, expert, genre)
            for expert, lifts in enumerate(self.lift)
            for lift, genre in zip(lifts, self.genres, strict=True)
            if lift is not None
        )
        return max(cells, default=None)


def genre_of(items: pa.Table) -> pd.Series:
    """Names of genres, one row per item and genre, indexed by item; empty without the column."""
    if GENRES not in items.column_names:
        return pd.Series(dtype=str, name=GENRES)
    names = items[GENRES].cast(pa.string()).to_pandas().fillna("")
    genres = names.str.split("|", regex=False).explode()
    return genres[genres != ""].rename(GENRES)


def genre_breakdown(
    task: str, genres: pd.Series, item_N: Tensor, top_N: Tensor, *, experts: int
) -> GenreBreakdown | None:
    """None where no genre has FEWEST rows. `genres`: as of `genre_of`."""
    rows = pd.DataFrame({"item": item_N.numpy(), "top": top_N.numpy()})
    rows = rows[rows["top"] >= 0].join(genres, on="item", how="inner")
    table = pd.crosstab(rows["top"], rows[GENRES]).reindex(range(experts), fill_value=0)
    count = table.sum().sort_values(ascending=False, kind="stable")
    count = count[count >= FEWEST]
    if count.empty:
        return None
    share = table[count.index] / count
    first = rows["top"][~rows.index.duplicated()].value_counts().reindex(share.index, fill_value=0)
    overall = first / first.sum()
    shown = share.div(overall, axis=0).where(first >= FEWEST, axis=0).astype(object)
    return GenreBreakdown(
        task=task,
        genres=count.index.tolist(),
        rows=count.tolist(),
        share=share.to_numpy().tolist(),
        overall=overall.tolist(),
        lift=shown.where(shown.notna(), None).to_numpy().tolist(),
    )
