"""Raw ids and indices."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from data_prep import ids

raw_ids = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=4), min_size=1),
)
small = st.lists(st.integers(0, 5), max_size=20)


@given(raw_ids)
def test_an_index_leads_back_to_its_raw_id_and_grows_with_it(raw: list[int] | list[str]) -> None:
    codes, vocabulary = ids.encode(pa.array(raw))
    known = vocabulary.to_pylist()
    assert [known[code] for code in codes] == raw
    assert known == sorted(set(raw))  # type: ignore[type-var]


@given(small)
def test_sorted_distinct_is_numpy_unique(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    assert ids.sorted_distinct(array).tolist() == np.unique(array).tolist()


@given(small)
def test_one_per_value_picks_the_first_or_the_last_place(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    first = sorted({value: -place for place, value in reversed(list(enumerate(values)))}.values())
    assert ids.one_per_value(array).tolist() == sorted(-place for place in first)
    last = {value: place for place, value in enumerate(values)}
    assert ids.one_per_value(array, last=True).tolist() == sorted(last.values())
