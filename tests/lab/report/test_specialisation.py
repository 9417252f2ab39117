"""The map and the genres: against scikit-learn and hand arithmetic."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.decomposition import PCA

from recsys_moe.errors import ConfigError
from recsys_moe.lab.report.specialisation import (
    FEWEST,
    NEIGHBOURS,
    ExpertMap,
    expert_map,
    genre_breakdown,
    genre_of,
)

CLOUD = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)
CORNER = (CLOUD[:, 5] > 0).long()


def pca_map() -> ExpertMap:
    return expert_map(CLOUD, CORNER[:, None], ["watch"], projection="pca", seed=0)


def test_the_map_is_pca_with_a_fixed_sign() -> None:
    found = pca_map()
    reference = PCA(2).fit(CLOUD.double().numpy())
    expected = torch.from_numpy(reference.transform(CLOUD.double().numpy()))
    for axis, mine in enumerate((found.x, found.y)):
        sign = (
            1 if reference.components_[axis][abs(reference.components_[axis]).argmax()] > 0 else -1
        )
        assert mine == pytest.approx((sign * expected[:, axis]).tolist(), abs=1e-6)
    assert found.explained == pytest.approx(float(reference.explained_variance_ratio_.sum()))
    assert found.top == {"watch": CORNER.tolist()}


def test_neighbours_are_counted_one_by_one() -> None:
    found = pca_map()
    same = 0
    for row in range(len(CLOUD)):
        distance = [(float((CLOUD[row] - CLOUD[o]).norm()), o) for o in range(200) if o != row]
        same += sum(int(CORNER[o]) == int(CORNER[row]) for _, o in sorted(distance)[:NEIGHBOURS])
    assert found.neighbours["watch"] == pytest.approx(same / (200 * NEIGHBOURS))
    n = int(CORNER.sum())
    pairs = n * (n - 1) + (200 - n) * (199 - n)
    assert found.chance["watch"] == pytest.approx(pairs / (200 * 199))


def test_umap_draws_from_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stand-in, since the real one takes half a minute to compile its loops."""

    class Stub:
        def __init__(self, **options: object) -> None:
            drawn = {"random_state": 3, "n_jobs": 1}
            assert options == {"n_components": 2, "n_neighbors": 15, **drawn}

        def fit_transform(self, x: np.ndarray) -> np.ndarray:
            return np.asarray(x[:, :2] * 2)

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Stub))
    found = expert_map(CLOUD, CORNER[:, None], ["watch"], projection="umap", seed=3)
    assert (found.projection, found.explained) == ("UMAP", None)
    assert found.x == pytest.approx((2 * CLOUD[:, 0]).tolist())
    assert found.y == pytest.approx((2 * CLOUD[:, 1]).tolist())
    assert found.neighbours == pca_map().neighbours  # they do not depend on the map


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Tensorflow not installed:ImportWarning")
def test_umap_itself_maps_any_number_of_rows_and_the_same_rows_alike() -> None:
    pytest.importorskip("umap", reason='needs umap-learn: pip install "recsys-moe[report]"')
    for rows in (2, 4, 5, 15, 40):
        x_ND, top_NT = CLOUD[:rows], CORNER[:rows, None]
        first, again = (
            expert_map(x_ND, top_NT, ["watch"], projection="umap", seed=3) for _ in range(2)
        )
        assert first.projection == ("PCA" if rows < 5 else "UMAP")
        assert np.isfinite([first.x, first.y]).all() and len(first.x) == rows
        assert first == again


def test_a_missing_umap_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ConfigError, match=r"pip install \"recsys-moe\[report\]\""):
        expert_map(CLOUD, CORNER[:, None], ["watch"], projection="umap", seed=0)


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
