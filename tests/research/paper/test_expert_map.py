"""The map of Figure 5: against scikit-learn and hand arithmetic."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from research.paper.expert_map import NEIGHBOURS, ExpertMap, draw_map, expert_map

CLOUD = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)
CORNER = (CLOUD[:, 5] > 0).long()


@pytest.fixture
def pca_map(monkeypatch: pytest.MonkeyPatch) -> ExpertMap:
    monkeypatch.setitem(sys.modules, "umap", None)  # not installed
    return expert_map(CLOUD, CORNER[:, None], ["watch"], seed=0)


def test_the_map_is_pca_with_a_fixed_sign(pca_map: ExpertMap) -> None:
    found = pca_map
    reference = PCA(2).fit(CLOUD.double().numpy())
    expected = torch.from_numpy(reference.transform(CLOUD.double().numpy()))
    for axis, mine in enumerate((found.x, found.y)):
        sign = (
            1 if reference.components_[axis][abs(reference.components_[axis]).argmax()] > 0 else -1
        )
        assert mine == pytest.approx((sign * expected[:, axis]).tolist(), abs=1e-6)
    assert found.explained == pytest.approx(float(reference.explained_variance_ratio_.sum()))
    assert found.top == {"watch": CORNER.tolist()}


def test_neighbours_are_counted_one_by_one(pca_map: ExpertMap) -> None:
    found = pca_map
    same = 0
    for row in range(len(CLOUD)):
        distance = [(float((CLOUD[row] - CLOUD[o]).norm()), o) for o in range(200) if o != row]
        same += sum(int(CORNER[o]) == int(CORNER[row]) for _, o in sorted(distance)[:NEIGHBOURS])
    assert found.neighbours["watch"] == pytest.approx(same / (200 * NEIGHBOURS))
    n = int(CORNER.sum())
    pairs = n * (n - 1) + (200 - n) * (199 - n)
    assert found.chance["watch"] == pytest.approx(pairs / (200 * 199))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Tensorflow not installed:ImportWarning")
def test_umap_itself_maps_any_number_of_rows_and_the_same_rows_alike() -> None:
    pytest.importorskip("umap", reason="needs umap-learn")
    for rows in (2, 4, 5, 15, 40):
        x_ND, top_NT = CLOUD[:rows], CORNER[:rows, None]
        first, again = (expert_map(x_ND, top_NT, ["watch"], seed=3) for _ in range(2))
        assert first.projection == ("PCA" if rows < 5 else "UMAP")
        assert np.isfinite([first.x, first.y]).all() and len(first.x) == rows
        assert first == again


def test_the_map_has_every_example_at_its_place_under_its_expert() -> None:
    data = ExpertMap("PCA", [0.0, 1, 2, 3], [4.0, 5, 6, 7], {"watch": [0, 9, 0, -1]}, 0.5, {}, {})
    (axes,) = draw_map(data).axes
    drawn = [part.get_offsets().tolist() for part in axes.collections]
    assert drawn == [[[3, 7]], [[0, 4], [2, 6]], [[1, 5]]]  # nobody, expert 0, expert 9
    assert {text.get_text(): text.xy for text in axes.texts} == {"0": (1, 5), "9": (1, 5)}
