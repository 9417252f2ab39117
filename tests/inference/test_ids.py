"""One rule for what an id is, in every place where one comes in: docs/how-to/prepare-data.md,
"Ids"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.errors import DataError
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.files.recommend import recommend_file
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.vocabulary import Vocabulary
from recsys_moe.schema import Feature
from tests.conftest import Command, tells

NUMBERS = pa.chunked_array([pa.array([1, 2, 7, 2**62])])
WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXTS = pa.chunked_array([pa.array(["1.0", "007", "7", "u x"])])


def vocabulary(ids: pa.ChunkedArray = NUMBERS, *, warm: bool = False) -> Vocabulary:
    kind: Any = "int64" if ids is not TEXTS else "string"
    user = Feature(name="user", column="user_index", size=len(ids), id_type=kind)
    made = Vocabulary(user, ids)
    if warm:
        made.warm_up()
    return made


@pytest.fixture
def predictor(run: Path) -> Predictor:
    return Predictor.load(run)


def write(path: Path, frame: pd.DataFrame) -> Path:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_users_files_take_floats_and_name_the_row_without_an_id(
    predictor: Predictor, tmp_path: Path, suffix: str
) -> None:
    source = write(tmp_path / f"users{suffix}", pd.DataFrame({"user": [1.0, 2.0]}))
    out = tmp_path / "out.parquet"
    assert recommend_file(predictor, source, out, 1)["unseen_user"] == 0
    assert pq.read_table(out)["user"].to_pylist() == [1, 2]
    write(source, pd.DataFrame({"user": [1.0, None], "note": ["a", "b"]}))
    with pytest.raises(DataError, match=rf"--users .*users\{suffix}: row 2 "):
        recommend_file(predictor, source, out, 1, overwrite=True)


@pytest.mark.parametrize(
    ("users", "expected"), [(["3", "99"], [3, 99]), (["3", "nobody"], ["3", "nobody"])]
)
def test_lists_hold_ids_of_the_type_that_the_model_has(
    predictor: Predictor, tmp_path: Path, users: list[str], expected: list[Any]
) -> None:
    """A column has one type: text where one of the ids is no integer. JSON needs no such rule."""
    source = tmp_path / "users.txt"
    source.write_text("\n".join(users) + "\n")
    recommend_file(predictor, source, tmp_path / "out.parquet", 1)
    assert pq.read_table(tmp_path / "out.parquet")["user"].to_pylist() == expected
    recommend_file(predictor, source, tmp_path / "out.jsonl", 1)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["user"] for line in lines] == [3, expected[1]]


def test_one_user_and_one_item_are_shown_as_the_model_holds_them(
    command: Command, run: Path
) -> None:
    assert json.loads(command("recommend", run, "--user", "1.0", "--json").out)["user"] == 1
    assert json.loads(command("similar", run, "--item", 2, "--json").out)["item"] == 2


def test_nearly_only_unknown_ids_are_warned_about_once(
    predictor: Predictor,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10 of 11 is more than 90%; 9 of 10 is not, and 9 of 9 are too few to tell."""
    monkeypatch.setattr(predictor.users, "_has_warned", False)
    strangers = [f"u{n}" for n in range(10)]
    predictor.score([*strangers[:9], 1], [1] * 10)
    predictor.recommend(strangers[:9], 1)
    assert not caplog.records
    source = write(tmp_path / "p.csv", pd.DataFrame({"user": [*strangers, 1], "item": 1}))
    for _ in range(2):
        predict_file(predictor, source, tmp_path / "out.csv", overwrite=True)
    (said,) = caplog.records
    assert said.levelname == "WARNING"
    assert tells(said.getMessage(), "10 of 11 user ids ... 'u0' ... 1, 2")


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64()])
def test_integers_of_any_width_are_the_ids_that_their_texts_are(kind: pa.DataType) -> None:
    found, unseen = vocabulary().index(pa.array([7, 1, 3], kind))
    assert (found.tolist(), unseen.tolist()) == ([2, 0, 4], [False, False, True])
    column = pa.chunked_array([pa.array([2], kind)])
    assert vocabulary().index(column)[0].tolist() == [1]
    assert vocabulary(TEXTS).index(pa.array([7], kind))[0].tolist() == [2]


@given(st.lists(st.integers(-9, 9), max_size=12), st.lists(st.integers(-9, 9) | WHOLE, max_size=12))
def test_numbers_are_found_where_arrow_finds_them(known: list[int], asked: list[int]) -> None:
    """Also the first of equal ones, and in an empty vocabulary."""
    ids, raw = pa.array(known, pa.int64()), pa.array(asked, pa.int64())
    found, unseen = vocabulary(pa.chunked_array([ids])).index(raw)
    places = pc.index_in(raw, value_set=ids)
    assert found.tolist() == places.fill_null(len(known)).to_pylist()
    assert unseen.tolist() == places.is_null().to_pylist()


@given(
    st.lists(st.text("ab", max_size=2), min_size=1, max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=2), max_size=8),
)
def test_texts_are_found_alike_in_the_first_call_and_later(
    known: list[str], asked: list[str]
) -> None:
    made, raw = vocabulary(pa.chunked_array([pa.array(known)])), pa.array(asked, pa.string())
    first, again = made.index(raw), made.index(raw)
    listed = made.index(asked)
    assert first[0].tolist() == again[0].tolist() == listed[0].tolist()
    assert first[1].tolist() == again[1].tolist() == listed[1].tolist()


def test_what_is_no_text_is_refused_in_every_call() -> None:
    made = vocabulary(TEXTS)
    for _ in range(3):
        with pytest.raises(DataError, match="ids must be text in UTF-8"):
            made.index(["7", "\ud800"])


def test_long_lists_need_no_table_of_their_own() -> None:
    made = vocabulary(TEXTS)
    for _ in range(2):
        assert made.index(pa.array(["7", "x"] * 5))[0].tolist() == [2, 4] * 5
    assert not made._table


def test_an_integer_that_no_int64_holds_is_unseen() -> None:
    """2**64 - 1 is no -1."""
    ids = pa.chunked_array([pa.array([-1, 2])])
    assert vocabulary(ids).index(pa.array([2**64 - 1, 2], pa.uint64()))[0].tolist() == [2, 1]
