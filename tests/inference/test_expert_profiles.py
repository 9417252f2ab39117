"""What experts stand for: from routers whose choices are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from recsys_moe.inference.attribution.expert_profiles import OFTEN, RARELY, expert_profiles, spread
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.ranking.item_values import item_columns, item_values
from recsys_moe.routers import Routing


@pytest.fixture
def predictor(run: Path, monkeypatch: pytest.MonkeyPatch) -> Predictor:
    """Expert 0 takes the first 10 of 40 items, 1 the others, 2 every item, 3 none.

    The first 20 items are red, 5 of the others blue, the rest without a colour.
    """
    found = Predictor.load(run)
    colours = pa.array(["red"] * 20 + ["blue"] * 5 + [None] * 15)
    items = found.artifact.items.select(["item", "item_index"]).append_column("colour", colours)
    items = items.append_column("the same again", colours)
    object.__setattr__(found.artifact, "items", items)

    def routings(user_B: torch.Tensor, item_B: torch.Tensor) -> list[Routing]:
        first_B = item_B < 10
        nothing_B = torch.zeros_like(first_B)
        chosen_BE = torch.stack([first_B, ~first_B, ~nothing_B, nothing_B], 1)
        return [Routing(chosen_BE.float(), chosen_BE)] * 2

    monkeypatch.setattr(found, "routings", routings)
    return found


def test_an_expert_is_known_by_what_it_is_chosen_for_more_often(predictor: Predictor) -> None:
    first, others, all_items, none = expert_profiles(predictor)
    (red,) = (trait for trait in first.traits if trait.column)
    # Chosen for 10 of 20 red items and for 10 of all 40: (10 / 20) / (10 / 40) = 2.
    assert (red.column, red.value, red.lift) == ("colour", "red", pytest.approx(2.0))
    mine = predictor.popularity[:10].sort(descending=True, stable=True).indices[:3] + 1
    assert first.items == mine.tolist()  # all 10 are 4 times the mean: the most watched
    # 5 blue items are too few; red is rarer than on average.
    assert [trait for trait in others.traits if trait.column] == []
    assert all(item > 10 for item in others.items)  # 1 / (30 / 40) = 1.33 times
    assert (all_items.traits, all_items.items, all_items.spared) == ([], [], False)
    assert (none.traits, none.items, none.spared) == ([], [], True)


def test_an_expert_of_popular_items_says_so(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expert 0 now takes items that were watched often: all of the first third and no other."""
    ranked = predictor.popularity.sort(descending=True, stable=True).indices
    often_N = torch.zeros(40, dtype=torch.bool).index_fill(0, ranked[:13], True)

    def routings(user_B: torch.Tensor, item_B: torch.Tensor) -> list[Routing]:
        chosen_BE = torch.stack([often_N[item_B], *[~often_N[item_B]] * 3], 1)
        return [Routing(chosen_BE.float(), chosen_BE)] * 2

    monkeypatch.setattr(predictor, "routings", routings)
    first, other, *_ = expert_profiles(predictor)
    often = next(trait for trait in first.traits if not trait.column)
    assert (often.value, often.lift) == (OFTEN, pytest.approx(40 / 13))
    assert RARELY in [trait.value for trait in other.traits]  # 1 / (27 / 40) = 1.48 times


def test_a_model_without_positives_still_has_profiles(predictor: Predictor) -> None:
    artifact = predictor.artifact
    nothing = {"offsets": torch.zeros(61, dtype=torch.long), "items": torch.empty(0).long()}
    predictor.artifact = replace(artifact, seen=nothing)
    assert len(expert_profiles(predictor)) == 4


ITEMS = pa.table(
    {
        "item": pa.array([10, 11, 12]),
        "item_index": pa.array([0, 1, 2]),
        "title": pa.array([f"Film {n}" for n in range(3)]),
        "year": pa.array([1979.0, None, float("nan")]),
        "genres": pa.array(["Drama|War", "War", None]),
    }
)


def test_columns_say_what_conditions_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys_moe.inference.ranking.item_values.KEPT", 2)
    columns = {column.name: column for column in item_columns(ITEMS)}
    assert list(columns) == ["item", "title", "year", "genres"]
    assert columns["genres"].values == ["War", "Drama"]  # the commonest first
    assert columns["title"].values == []  # three are too many
    assert columns["genres"].operators == ["=", "!=", "~"]
    assert columns["year"].operators == ["=", "!=", "<", "<=", ">", ">="]


def test_a_missing_value_is_nothing() -> None:
    rows = item_values(ITEMS, torch.tensor([2, 0]), ["year", "genres"])
    assert rows == [{"year": None, "genres": None}, {"year": 1979.0, "genres": "Drama|War"}]
    assert item_values(ITEMS, torch.tensor([1, 1]), []) == [{}, {}]


def test_places_of_more_items_than_float32_counts_end_at_the_last() -> None:
    """2**24 + 3 is no float32: the nearest is 2**24 + 4, past the end."""
    size = 2**24 + 4
    assert spread(size, 17)[[0, -1]].tolist() == [0, size - 1]
    assert spread(3, 17).tolist() == [0, 1, 2] and spread(5, 3).tolist() == [0, 2, 4]
