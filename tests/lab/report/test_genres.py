"""Experts by genre, against hand arithmetic."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest
import torch

from recsys_moe.lab.report.genres import FEWEST, genre_breakdown, genre_of


def test_genres_are_split_and_an_item_may_have_none() -> None:
    found = genre_of(pa.table({"genres": ["A|B", "", None, "B"]}))
    assert list(found.items()) == [(0, "A"), (0, "B"), (3, "B")]
    assert genre_of(pa.table({"title": ["x"]})).empty
    assert genre_of(pa.table({"genres": ["", ""]})).empty


ITEMS = genre_of(pa.table({"genres": ["A", "A|B", "B", "", "C"]}))


def test_lift_is_the_share_of_a_genre_over_the_share_of_all() -> None:
    """100 rows of A and 200 of B, 50 of them of both; 10 of no genre and 10 of a rare one."""
    a_only, both, b_only, none, rare, unseen = 50, 50, 150, 10, 10, 5
    counts = torch.tensor([a_only, both, b_only, none, rare, unseen])
    item_N = torch.arange(len(counts)).repeat_interleave(counts).int()
    # A alone goes to expert 0, everything else to expert 1; nobody takes two rows of B.
    top_N = (item_N > 0).long()
    top_N[a_only + both : a_only + both + 2] = -1
    found = genre_breakdown("watch", ITEMS, item_N, top_N, experts=3)
    assert found is not None
    assert (found.genres, found.rows) == (["B", "A"], [198, 100])
    assert found.share == [[0, 0.5], [1, 0.5], [0, 0]]
    known = a_only + both + b_only + rare - 2
    assert found.overall == pytest.approx([50 / known, (known - 50) / known, 0])
    assert found.lift[0] == pytest.approx([0, 0.5 / (50 / known)])
    assert found.lift[1] == pytest.approx([known / (known - 50), 0.5 * known / (known - 50)])
    assert found.lift[2] == [None, None]
    assert found.strongest == (found.lift[0][1], 0, "A")
    assert found.notable(0) == [("A", found.lift[0][1])]


@pytest.mark.parametrize("genres", [ITEMS, genre_of(pa.table({"title": ["x"]}))])
def test_too_few_rows_show_nothing(genres: pd.Series) -> None:
    item_N = torch.zeros(FEWEST - 1, dtype=torch.int32)
    top_N = torch.zeros(FEWEST - 1, dtype=torch.int64)
    assert genre_breakdown("watch", genres, item_N, top_N, experts=2) is None
