"""One rule for which spelling is which id, wherever one comes in: docs/how-to/prepare-data.md,
"Ids"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from data_prep.table.cells import Cells, ids
from data_prep.table.files import TableFile
from recsys_moe import raw_ids
from recsys_moe.errors import DataError
from recsys_moe.inference.cold_start.features import FeatureReader
from recsys_moe.inference.files.recommend import read_ids
from recsys_moe.inference.vocabulary import Vocabulary, id_texts
from recsys_moe.schema import Feature, FeatureColumn
from recsys_moe.serve.request_types import Id

EntryPoint = Callable[[Sequence[Any]], list[str]]
EDGES = [0, 2**24 + 1, 2**53 - 1, 2**53, 2**53 + 1, 10**18, 2**63 - 1, -(2**63)]
whole_numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-999, 999) | st.sampled_from(EDGES)
OTHER_TEXTS = [
    *("007", "007.0", "+7", "7e0", "1e3", "7.", ".0", "7.5", "0x7", "7.0.0", "7,0", "--7", "- 7"),
    *(" 7", "7 ", "7.0 ", "7.0\t", "NA", "null", "None", "nano", "inf", "true", "u x", "\u0667"),
]
NO_IDS = ["", " ", "\t", "NaN", "nan", "<NA>", None, math.nan, math.inf, 1.5, 2.0**63]


def spellings(number: int) -> list[list[Any]]:
    """Ways to write a number without loss, by type."""
    texts = [f"{number}", f"{number}.0", f"{number}.000", *(["-0", "-0.0"] if not number else [])]
    ways: list[list[Any]] = [texts, [number, np.int64(number)]]
    ways.append([Decimal(number), Decimal(f"{number}.00"), Decimal(number).normalize()])
    for kind in (float, np.float32):
        if int(kind(number)) == number:
            ways.append([kind(number), *([kind(-0.0)] if not number else [])])
    return ways


def through_prepare(column: pa.Array) -> list[str]:
    """The ids that `prepare table` reads in a column."""
    return ids(Cells(TableFile(label="x", columns=pa.table({"u": column}))), "u").to_pylist()


def arrow(values: Sequence[Any]) -> pa.Array:
    return pa.array(values, pa.decimal128(38, 2) if isinstance(values[0], Decimal) else None)


def vocabularies(texts: Sequence[str]) -> list[Vocabulary]:
    """Of ids as text, and as integers; cold and with a hash table."""
    found = []
    kinds: list[Any] = ["string", *(["int64"] if raw_ids.INT64.fullmatch(texts[0]) else [])]
    for kind in kinds:
        column = pa.chunked_array([pa.array(texts).cast(kind)])
        feature = Feature(name="user", column="user_index", size=len(texts), id_type=kind)
        found += [Vocabulary(feature, column), Vocabulary(feature, column)]
        found[-1].warm_up()
    return found


def over_http(values: Sequence[Any]) -> list[str]:
    given: list[Any] = [TypeAdapter(Id).validate_python(value) for value in values]
    return [*id_texts(given)]


ENTRY_POINTS: dict[str, EntryPoint] = {
    "a list": lambda values: [*id_texts(values)],
    "an Arrow column": lambda values: id_texts(arrow(values)).to_pylist(),
    "a dictionary": lambda values: id_texts(arrow(values).dictionary_encode()).to_pylist(),
    "chunks": lambda values: id_texts(pa.chunked_array([arrow([v]) for v in values])).to_pylist(),
    "pandas": lambda values: [*id_texts(pd.Series(values, dtype=object))],
    "prepare": lambda values: through_prepare(arrow(values)),
    "prepare, categorical": lambda values: through_prepare(arrow(values).dictionary_encode()),
}


@settings(max_examples=25)
@given(whole_numbers)
def test_a_whole_number_is_one_id_in_every_spelling_type_and_place(number: int) -> None:
    for values in spellings(number):
        for name, entry in ENTRY_POINTS.items():
            assert entry(values) == [str(number)] * len(values), (name, values)
        if type(values[0]) in (str, int, float):  # what JSON has
            assert over_http(values[:1]) == [str(number)]
        for vocabulary in vocabularies([str(number), "5"]):
            for asked in (values, arrow(values), arrow(values).dictionary_encode()):
                assert vocabulary.index(asked)[0].tolist() == [0] * len(values)
            assert str(vocabulary.plain(values[0])) == str(number)


@settings(max_examples=50)
@given(st.sampled_from(OTHER_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=5))
def test_any_other_text_is_itself_in_every_place(text: str) -> None:
    assume(raw_ids.of_text(text) == text and "\n" not in text and "\r" not in text)
    assert text in raw_ids.plain(pa.array([text, "7.0"])).to_pylist()
    for name, entry in ENTRY_POINTS.items():
        assert entry([text]) == [text], name
    assert over_http([text]) == [text]
    for vocabulary in vocabularies([text, "5"]):
        assert vocabulary.index([text, 5.0])[0].tolist() == [0, 1]


def test_the_other_texts_are_not_seven() -> None:
    assert [raw_ids.of_text(text) for text in OTHER_TEXTS] == OTHER_TEXTS


@pytest.mark.parametrize("value", NO_IDS, ids=repr)
def test_what_is_no_id_is_none_in_any_place(value: Any, tmp_path: Path) -> None:
    for name, entry in ENTRY_POINTS.items():
        with pytest.raises(DataError, match="row 1"):
            pytest.fail(f"{name}: {entry([value])}")
    for vocabulary in vocabularies(["1", "2"]):
        with pytest.raises(DataError, match="row 2 .*user"):
            vocabulary.index([1, value])
    with pytest.raises(ValidationError):
        over_http([value])
    if isinstance(value, str) and value.strip():
        (tmp_path / "users.txt").write_text(f"1\n{value}\n")
        with pytest.raises(DataError, match="row 2 has no id"):
            list(read_ids(tmp_path / "users.txt", "user", "--users"))


def test_decimals_of_a_database_are_read_whole() -> None:
    big = Decimal(10**37)
    assert id_texts(pa.array([big, Decimal(7)])).to_pylist() == [str(10**37), "7"]
    with pytest.raises(DataError, match=r"row 2 .*Decimal\('7.50'\)"):
        id_texts(pa.array([Decimal("1.00"), Decimal("7.50")]))
    with pytest.raises(DataError, match="row 1"):
        id_texts([Decimal("1e999999999")])
    with pytest.raises(DataError, match="row 1"):
        id_texts([Decimal("NaN")])


def test_of_two_spellings_in_an_older_model_the_first_stands_warm_and_cold() -> None:
    for vocabulary in vocabularies(["x", "7", "7.0"]):
        assert vocabulary.index(["7", 7.0, "7.0"])[0].tolist() == [1, 1, 1]


def test_categories_follow_the_rule_of_ids() -> None:
    """ "3.0" is of an older preparation; "NaN" is a missing category."""
    given = {"side": "user", "feature": "job", "index": [0, 1], "value": ["3.0", "x"]}
    categories = pa.table(pd.DataFrame(given).to_dict("list"))
    job = FeatureColumn(name="job", kind="categorical", size=2)
    reader = FeatureReader("user", [job], categories)
    for value in (3, 3.0, "3", "3.00", Decimal(3)):
        assert reader.read({"job": value}) == ([(0, 1.0)], {})
    assert reader.read({"job": "NaN"}) == ([], {})
    assert reader.read({"job": "03"})[1] == {"job": ["03"]}
