"""Values of NumPy, pandas, Arrow and torch equal those of plain Python at every entry point."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from recsys_moe.errors import DataError
from recsys_moe.inference.plain import plain, plain_list, shown
from recsys_moe.inference.predictor import ColdUser, Predictor

EntryPoint = Callable[[Predictor, Any], Any]
FOUR: list[Any] = [
    *(kind(4) for kind in (np.int8, np.int64, np.uint64, np.float16, np.float32, np.longdouble)),
    *(np.array(4), np.array(4.0, np.float32), torch.tensor(4), torch.tensor(4.0).bfloat16()),
    *(pa.scalar(4), pa.scalar(4.0), pa.scalar(Decimal("4.0")), Decimal(4), Decimal("4.00")),
    *(pd.Series([4]).iloc[0], pd.Categorical([4])[0], pd.array([4], "Int64")[0]),
    torch.tensor(4.0, requires_grad=True),
]
TEXT: list[Any] = [np.str_("job 1"), np.array("job 1"), pa.scalar("job 1"), pa.scalar("job 1")]
TEXT += [pd.Series(["job 1"], dtype=kind).iloc[0] for kind in ("string", "category", object)]
MISSING: list[Any] = [math.nan, pd.NA, pd.NaT, np.float16("nan"), np.datetime64("NaT", "ns")]
MISSING += [torch.tensor(math.nan), pa.scalar(None, pa.int64()), np.array(None), Decimal("NaN")]
NO_NUMBER: list[Any] = [True, np.True_, torch.tensor(True), pa.scalar(True), b"4", np.bytes_(4)]
NO_NUMBER += [pd.Timestamp(4), np.datetime64(4, "ns"), np.array(4, "m8[ns]"), np.complex64(4)]
NO_NUMBER += [pd.Series([4]), np.array([4]), torch.tensor([4]), pd.DataFrame({"a": [4]}), object()]
LISTS: list[Callable[[list[Any]], Any]] = [
    tuple,
    np.array,
    pd.Series,
    pd.Index,
    pd.Categorical,
    pa.array,
    lambda values: np.array(values, object),
    lambda values: pa.chunked_array([values]),
    lambda values: pa.scalar(values),
    lambda values: pa.array(values).dictionary_encode(),
    lambda values: [pa.scalar(value) for value in values],
    lambda values: pd.Series(values, dtype=pd.ArrowDtype(pa.array(values).type)),
]

NUMBERS: dict[str, EntryPoint] = {
    "user": lambda p, x: p.score([x], [2]).tasks,
    "item": lambda p, x: p.score([1], [x]).tasks,
    "explained": lambda p, x: p.explain([x], [2]),
    "candidate": lambda p, x: p.recommend([1], 3, candidates=[x, 2]),
    "similar": lambda p, x: p.similar(x, 3),
    "watched": lambda p, x: p.positives(x),
    "of the history": lambda p, x: p.recommend(history=[x], k=3),
    "key of the history": lambda p, x: p.recommend(history={x: 3}, k=3),
    "unused": lambda p, x: p.unused(ColdUser(history=[x, x, "?"])),
    "rating": lambda p, x: p.recommend(history={2: x}, k=3),
    "age": lambda p, x: p.recommend(features={"age": x}, k=3),
    "k": lambda p, x: p.recommend([1], x),
    "k of similar": lambda p, x: p.similar(1, x),
    "most": lambda p, x: p.attributions([1], [2], x),
}
OPTIONAL = {"rating", "age"}
"""Where a missing value is one."""


@pytest.fixture(scope="module")
def predictor(featured_run: Path) -> Predictor:
    return Predictor.load(featured_run)


def is_hashable(value: Any) -> bool:
    return not isinstance(value, np.ndarray | pd.Series | pd.DataFrame)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(torch.equal(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.parametrize("entry", NUMBERS)
def test_four_is_four_at_every_entry_point(entry: str, predictor: Predictor) -> None:
    ask = NUMBERS[entry]
    if entry == "explained":
        expected: Any = repr(ask(predictor, 4))
        assert all(repr(ask(predictor, four)) == expected for four in FOUR)
        return
    expected = ask(predictor, 4)
    ones = [four for four in FOUR if "key" not in entry or is_hashable(four)]
    assert [repr(four) for four in ones if not equal(ask(predictor, four), expected)] == []


@pytest.mark.parametrize("entry", NUMBERS)
def test_what_is_missing_is_none_at_every_entry_point(entry: str, predictor: Predictor) -> None:
    ask = NUMBERS[entry]
    if entry in OPTIONAL:
        assert all(ask(predictor, one) == ask(predictor, None) for one in MISSING)
        return
    for one in [None, *MISSING]:
        if "key" in entry and not is_hashable(one):
            continue
        with pytest.raises((DataError, ValueError)) as refused:
            ask(predictor, one)
        assert "None" in str(refused.value) and "\n" not in str(refused.value), one


@pytest.mark.parametrize("entry", NUMBERS)
def test_what_is_no_number_is_refused_in_one_line_at_every_entry_point(
    entry: str, predictor: Predictor
) -> None:
    """But a number of a feature may be a truth value: true is 1 there, as in files."""
    for one in NO_NUMBER:
        if entry == "age" and plain(one) is True:
            continue
        if "key" in entry and not is_hashable(one):
            continue
        with pytest.raises((DataError, ValueError)) as refused:
            NUMBERS[entry](predictor, one)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 200, one


def test_a_category_is_its_text_whatever_holds_it(predictor: Predictor) -> None:
    expected = predictor.recommend(features={"job": "job 1"}, k=3)
    assert all(predictor.recommend(features={"job": one}, k=3) == expected for one in TEXT)
    strange = predictor.unused(ColdUser({"job": np.True_})).categories
    assert strange == {"job": ["true"]} == predictor.unused(ColdUser({"job": True})).categories


def test_a_list_is_one_whatever_holds_it(predictor: Predictor) -> None:
    genres, items = ["genre 1", "genre 3"], [2, 4, 3]
    item = predictor.score([1], [ColdUser({"genres": genres})]).tasks
    pairs, ranked = predictor.score(items, items).tasks, predictor.recommend(items, 3)
    given = predictor.recommend(history=items, k=3)
    among = predictor.recommend([1], candidates=items, where=["item>2"])
    for made in LISTS:
        assert equal(predictor.score([1], [ColdUser({"genres": made(genres)})]).tasks, item)
        assert equal(predictor.score(made(items), made(items)).tasks, pairs)
        assert predictor.recommend(made(items), 3) == ranked
        assert predictor.recommend(history=made(items), k=3) == given
        where = made(["item>2"])
        assert predictor.recommend([1], candidates=made(items), where=where) == among
    assert equal(predictor.score(torch.tensor(items), torch.tensor([2.0, 4, 3])).tasks, pairs)
    new = [ColdUser(), 2, ColdUser(history=items)]
    expected = predictor.recommend(new, 3)
    for whom in (tuple(new), np.array(new, object), pd.Series(new)):
        assert predictor.recommend(whom, 3) == expected


def test_a_row_of_a_frame_and_a_struct_tell_of_a_user(predictor: Predictor) -> None:
    expected = predictor.recommend(features={"age": 25, "job": None}, history={2: 4.0, 3: None})
    row = pd.DataFrame({"age": [25.0], "job": [None]}).iloc[0]
    ratings = {np.int64(2): np.float32(4), 3: math.nan}
    assert predictor.recommend(features=row, history=ratings) == expected  # type: ignore[arg-type]
    struct = pa.scalar({"age": 25, "job": None})
    rated = pa.scalar([(2, 4.0), (3, None)], pa.map_(pa.int64(), pa.float64()))
    assert predictor.recommend(features=struct, history=rated) == expected


@pytest.mark.parametrize(
    "one", [4, "u", np.int64(4), np.array(4), torch.tensor(4), pa.scalar("u"), None, pd.NA]
)
def test_one_value_where_a_list_belongs_is_refused(one: Any, predictor: Predictor) -> None:
    for ask in (
        lambda: predictor.score(one, one),
        lambda: predictor.recommend(one),
        lambda: predictor.recommend([1], where=one),
    ):
        with pytest.raises(TypeError, match="expected a list"):
            ask()
    with pytest.raises(TypeError, match="list of ids, got a DataFrame"):
        predictor.recommend(pd.DataFrame({"user": [one]}))  # type: ignore[arg-type]


def test_numbers_beyond_float64_and_dates_are_not_other_ids() -> None:
    """2**53 + 1 is no float64; dates in nanoseconds are no integers."""
    big = 2**53 + 1
    values = [np.int64(big), Decimal(big), pa.scalar(Decimal(big)), torch.tensor(big)]
    assert [plain(value) for value in values] == [big] * 4
    assert plain(np.array([big], np.uint64)) == [big]
    assert plain(Decimal("1E+1000000")) == math.inf and plain(Decimal("0.5")) == 0.5
    days = plain_list(np.array(["2020-01-01", "NaT"], "M8[ns]"))
    assert not isinstance(days[0], int) and days[1] is None


def test_an_error_shows_a_value_on_one_short_line() -> None:
    assert "\n" not in shown(pd.DataFrame({"a": range(9)})) and len(shown([*range(999)])) == 100
