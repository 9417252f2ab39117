"""The results of the paper: every row names a router, and its loss is the weighted sum."""

from __future__ import annotations

import pytest

from recsys_moe.lab.compare.significance import Spread
from recsys_moe.routers import ROUTERS
from research.paper_figures import figures_of, paper_data

LINE = {"data": "movielens-1m", "protocol": "paper", "split": "test"}


def test_the_data_are_named_by_the_column_of_older_files_or_by_protocol_and_split() -> None:
    assert paper_data(LINE) == "movielens-1m" == paper_data({**LINE, "paper": "movielens-1m"})
    for change in ({"protocol": "time"}, {"split": "val"}, {"paper": ""}):
        assert paper_data({**LINE, **change}) == ""


def test_figures_are_those_of_table_1() -> None:
    found = figures_of("movielens-1m", {"watch": 0.9, "rating": 0.1})["moesart"]
    assert found["loss"] == Spread(pytest.approx(0.4089), pytest.approx(0.0002), 50)
    assert found["watch.auc"].mean == pytest.approx(0.9161) and found["rating.mse"].mean == 0.7430
    assert figures_of("", {"watch": 0.9}) == figures_of("movielens-1m", {"watch": 0.5}) == {}


@pytest.mark.parametrize(
    ("name", "low", "high"), [("movielens-1m", 0.37, 0.49), ("books", 0.52, 0.64)]
)
@pytest.mark.parametrize("watch", [0.1, 0.9])
def test_every_row_names_a_router_and_adds_up(
    name: str, low: float, high: float, watch: float
) -> None:
    found = figures_of(name, {"watch": watch, "rating": 1 - watch})
    assert len(found) == 9 and set(found) <= set(ROUTERS)
    for router, cells in found.items():
        loss, auc, mse = (cells[key].mean for key in ("loss", "watch.auc", "rating.mse"))
        bce = (loss - (1 - watch) * mse) / watch
        assert low < bce < high and 0.55 < auc < 0.92, (router, bce)
        assert all(0 < cell.standard_error < 0.01 for cell in cells.values())  # type: ignore[operator]
