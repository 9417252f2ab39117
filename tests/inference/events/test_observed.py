"""One event as callers give it: what is accepted, and what is refused with its rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.errors import DataError
from recsys_moe.inference.events.observed import Event, distinct, read_events, read_plain


def test_ids_are_text_in_their_one_form_and_numbers_plain() -> None:
    given = {"user": 7.0, "item": np.int64(50), "time": np.float32(8), "value": None, "id": 3}
    [found] = read_events([given], of_users=True)
    assert found == Event("50", 8.0, None, user="7", id="3")
    assert read_events([Event(50, 8, user=7, id="3")], of_users=True) == [found]


def test_an_event_without_an_id_is_known_by_item_and_time() -> None:
    assert Event("a", 1.0).key == Event("a", 1.0, 5.0).key
    keys = {one.key for one in (Event("a", 1.0), Event("b", 1.0), Event("a", 2.0))}
    assert len(keys | {Event("a", 1.0, id="1.0 a").key}) == 4


def test_of_two_deliveries_the_first_is_kept_whatever_their_times() -> None:
    named = [Event("a", 1.0, id="x"), Event("b", 2.0), Event("a", 3.0, id="x")]
    assert distinct(named) == named[:2]
    assert distinct([Event("a", 1.0), Event("a", 1.0, 5.0)]) == [Event("a", 1.0)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"item": 1}, "events[1]: time must be seconds since 1970"),
        ({"item": 1, "time": 1.7e12}, "divide milliseconds by 1000"),
        ({"item": 1, "time": -1}, "got -1"),
        ({"item": 1, "time": float("inf")}, "got inf"),
        ({"item": 1, "time": True}, "got True"),
        ({"item": 1, "time": "2020"}, "got '2020'"),
        ({"item": 1, "time": 10**400}, "time must be"),
        ({"item": 1.5, "time": 1}, "item must be text"),
        ({"item": " ", "time": 1}, "item must be text"),
        ({"item": "x" * 513, "time": 1}, "item must be text of 1 to 512"),
        ({"time": 1}, "item must be text"),
        ({"item": 1, "time": 1, "value": "5"}, "value must be a finite number"),
        ({"item": 1, "time": 1, "value": True}, "value must be a finite number"),
        ({"item": 1, "time": 1, "id": 1.5}, "id must be text"),
        ({"item": 1, "time": 1, "rating": 5}, "an event has no 'rating'"),
        ({"item": 1, "time": 1, "user": None}, "user must be text"),
        ("x", "must be an object"),
        (None, "must be an object"),
    ],
)
def test_an_invalid_event_is_refused_with_its_number(wrong: Any, words: str) -> None:
    if isinstance(wrong, dict):
        wrong = {"user": 1} | wrong
    with pytest.raises(DataError) as error:
        read_events([{"user": 1, "item": 1, "time": 1}, wrong], of_users=True)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_an_event_of_a_request_names_no_user() -> None:
    assert read_events([{"item": 1, "time": 2}], of_users=False) == [Event("1", 2.0)]
    with pytest.raises(DataError, match="omit user 3"):
        read_events([{"item": 1, "time": 2, "user": 3}], of_users=False)


@pytest.mark.parametrize("one", [Event(1, 2.0), {"item": 1, "time": 2}, "events"])
def test_one_event_where_a_list_belongs_is_a_type_error(one: Any) -> None:
    with pytest.raises(TypeError, match="expected a list of events"):
        read_events(one, of_users=False)
    frame = pd.DataFrame({"item": ["a"], "time": [1]})
    with pytest.raises(TypeError, match="got a DataFrame; pass its rows as dicts"):
        read_events(frame, of_users=False)  # type: ignore[arg-type]


ODD = st.sampled_from(
    [None, True, -1, 0, 3, 3.5, 9, "3", " ", "x" * 513, math.nan, 2.0**70, 10**400]
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"item": st.integers(0, 3) | ODD, "time": st.integers(0, 9) | ODD},
            optional={"value": st.integers(1, 5) | ODD, "id": ODD, "user": ODD},
        ),
        max_size=4,
    )
)
def test_events_read_at_once_are_those_that_are_read_one_by_one(events: list[Any]) -> None:
    if (found := read_plain(events)) is not None:
        assert repr(found) == repr(read_events(events, of_users=False))


def test_plain_events_are_read_at_once() -> None:
    first = {"item": 1, "time": 2, "value": 3, "id": "a"}
    events = [first, {"item": "b", "time": 2.5}, {"item": 7, "time": 0, "value": None, "id": None}]
    assert read_plain(events) == read_events(events, of_users=False)
    assert read_plain([first, {**first, "id": " "}]) is None
