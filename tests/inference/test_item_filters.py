"""Conditions on item columns: a closed grammar, and one line for whatever does not fit."""

from __future__ import annotations

import math
import operator
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.errors import ConfigError
from recsys_moe.inference.ranking.item_filters import matching_items
from tests.conftest import tells

ITEMS = pa.table(
    {
        "item": pa.array([10, 11, 12, 13]),
        "item_index": pa.array([0, 1, 2, 3]),
        "title": pa.array(["Alien (1979)", "Aliens", None, "a=b"]),
        "year": pa.array([1979, 1986, 1990, None], pa.int32()),
        "genres": pa.array(["Sci-Fi|Horror", "Sci-Fi", "Horror-Comedy", ""]),
    }
)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ([], [0, 1, 2, 3]),
        (["genres=Horror"], [0]),  # a member of the cell, not a part of a member
        (["genres = Sci-Fi"], [0, 1]),
        (["genres!=Sci-Fi"], [2, 3]),
        (["genres~horror"], [0, 2]),
        (["title~ALIEN"], [0, 1]),
        (["title!=Aliens"], [0, 3]),  # a missing title satisfies nothing
        (["title=a=b"], [3]),
        (["year>=1986"], [1, 2]),
        (["year<1986"], [0]),
        (["year!=1986"], [0, 2]),
        (["year=1979.0"], [0]),
        (["item=12"], [2]),
        (["year>1980", "year<=1986"], [1]),
        (["genres=Sci-Fi", "genres=Horror"], [0]),
    ],
)
def test_all_conditions_must_hold(where: list[str], expected: list[int]) -> None:
    assert matching_items(ITEMS, where).nonzero()[:, 0].tolist() == expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("genre=Horror", "'genre' ... 'genres'"),
        ("item_index=1", "'item_index' ... genres, item"),
        ("genres", "must look like COLUMN OP VALUE"),
        ("year>=", "must look like COLUMN OP VALUE"),
        ("year>= ", "must look like COLUMN OP VALUE"),
        ("=1", "must look like COLUMN OP VALUE"),
        ("year>=new", "'new' is not a number"),
        ("year>=nan", "'nan' is not a number"),
        ("title=\udcff", "UTF-8, got 'title=\\udcff'"),
        ("year~19", "~ needs text, the column holds numbers"),
        ("genres<Horror", "< needs numbers, the column holds text"),
    ],
)
def test_a_condition_that_does_not_fit_is_refused(condition: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        matching_items(ITEMS, [condition])
    assert tells(str(caught.value), message) and "\n" not in str(caught.value)


@given(st.text(max_size=12))
def test_whatever_is_typed_is_a_filter_or_a_config_error(condition: str) -> None:
    try:
        assert len(matching_items(ITEMS, [condition])) == 4
    except ConfigError as error:
        assert "--where" in str(error)


EDGES = [0, 5, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), -5]
BOUNDS = [*map(str, EDGES), *("5.5", "-5.5", "9007199254740992.5", "1e30", "-inf", "inf", "-1e400")]
ORDERS = {
    **{"=": operator.eq, "!=": operator.ne, "<": operator.lt},
    **{"<=": operator.le, ">": operator.gt, ">=": operator.ge},
}


@pytest.mark.parametrize("op", ORDERS)
@pytest.mark.parametrize("bound", BOUNDS)
def test_integers_of_64_bits_are_compared_exactly(op: str, bound: str) -> None:
    """2^53 + 1 has no float64; Python compares integers and decimals without rounding."""
    items = pa.table({"item": pa.array([*EDGES, None], pa.int64())})
    expected = [ORDERS[op](edge, Decimal(bound)) for edge in EDGES]
    assert matching_items(items, [f"item{op}{bound}"]).tolist() == [*expected, False]


def test_unsigned_integers_and_floats_take_the_same_conditions() -> None:
    items = pa.table({"big": pa.array([2**64 - 1, 1], pa.uint64()), "part": [0.5, math.inf]})
    assert matching_items(items, ["big>9223372036854775807"]).tolist() == [True, False]
    assert matching_items(items, ["big<1e30"]).tolist() == [True, True]
    assert matching_items(items, ["part<=0.5"]).tolist() == [True, False]
    assert matching_items(items, ["part<1e400"]).tolist() == [True, False]
