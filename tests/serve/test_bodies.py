"""A body is read by way of Python's objects; what that refuses is said by the reader of JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from recsys_moe.serve.bodies import parsed
from recsys_moe.serve.bounded import request_types
from recsys_moe.serve.limits import Limits

BODIES = request_types(Limits())
SCALARS = (
    st.sampled_from([None, True, 0, 1, -7, 2**63, 1.0, 1.5, -0.0, 1e300, "", " ", "u 1", "7.0"])
    | st.floats()
    | st.integers()
)
NAMES = st.sampled_from(
    [*{name for body in BODIES.values() for name in body.model_fields}, "item", "time", "value"]
    + ["id", "user", "features", "history", "other"]
)
VALUES = st.recursive(
    SCALARS, lambda one: st.lists(one, max_size=3) | st.dictionaries(NAMES, one, max_size=4)
)


def mostly(valid: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 19).flatmap(lambda number: valid if number else SCALARS | VALUES)


IDS = mostly(st.sampled_from([1, 7.0, "7", "u 1", 2**62]))
TIMES, RATINGS = st.sampled_from([0, 5, 2.5, 978_130_092]), st.sampled_from([None, 4, 3.5])
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"item": IDS, "time": mostly(TIMES)},
        optional={"value": mostly(RATINGS), "id": IDS},
    ),
    max_size=3,
)
GIVEN = st.fixed_dictionaries(
    {
        "users": st.lists(IDS, min_size=2, max_size=2),
        "items": st.lists(IDS, min_size=2, max_size=2),
    },
    optional={"events": mostly(EVENTS | st.lists(EVENTS, max_size=2)), "context": VALUES},
)


def read(raw: bytes, body: type[BaseModel], way: Any) -> tuple[bool, str]:
    try:
        found = way(raw)
    except ValidationError as error:
        return False, repr(error.errors(include_url=False))
    return True, f"{found!r} {[*found.model_fields_set]!r}"


def assert_alike(raw: bytes, body: type[BaseModel]) -> None:
    found = read(raw, body, lambda raw: parsed(raw, body))
    assert found == read(raw, body, body.model_validate_json)


@given(st.sampled_from(sorted(BODIES)), st.dictionaries(NAMES, VALUES | EVENTS) | VALUES)
@example("predict", {"users": [1], "items": [2], "events": [{"item": 3, "time": 4}]})
def test_a_body_is_what_the_reader_of_json_makes_of_it(name: str, given: Any) -> None:
    assert_alike(json.dumps(given).encode(), BODIES[name])


@given(st.sampled_from(["predict", "explain"]), GIVEN)
def test_requests_that_are_mostly_right_too(name: str, given: Any) -> None:
    assert_alike(json.dumps(given).encode(), BODIES[name])


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff", b'{"users": [1], "users": [2], "items": [3]}', b"[" * 5000, b"NaN"]
    + [b'{"users": [1], "items": [1e999]}', b'{"users": ["\\ud800"], "items": [1]}'],
)
def test_damaged_bodies_too(raw: bytes) -> None:
    assert_alike(raw, BODIES["predict"])
