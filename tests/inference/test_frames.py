"""DataFrames in and out of a Predictor: the figures of `predict` and `recommend`, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from recsys_moe import ColdUser, Predictor
from recsys_moe.errors import DataError
from recsys_moe.inference.files import predict
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.files.recommend import recommend_file


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return Predictor.load(run)


@pytest.fixture(scope="module")
def pairs(predictor: Predictor) -> pd.DataFrame:
    """100 pairs in no order, one with unknown ids; with an index of its own and a label."""
    rng = np.random.default_rng(0)
    users = rng.choice(predictor.users.ids.to_pylist(), 100)
    items = rng.choice(predictor.items.ids.to_pylist(), 100)
    frame = pd.DataFrame({"watch": 1.0, "item": items, "user": users})
    frame.loc[7, ["user", "item"]] = 987654
    return frame.set_index(pd.Index([f"row {one}" for one in range(100)], name="row"))


def test_a_frame_is_scored_as_its_file_is_predicted(
    predictor: Predictor, pairs: pd.DataFrame, tmp_path: Path
) -> None:
    found = predictor.score(pairs)
    source, target = tmp_path / "pairs.parquet", tmp_path / "scores.parquet"
    pairs.drop(columns="watch").to_parquet(source)
    predict_file(predictor, source, target)
    file = pd.read_parquet(target)
    pd.testing.assert_frame_equal(found, file[found.columns].set_index(pairs.index))
    assert list(found) == ["watch", "rating", "watch_calibrated", "unseen_user", "unseen_item"]
    assert found.index.equals(pairs.index) and found.index.name == "row"
    assert [*predictor.score(pairs, calibrate=False)] == ["watch", "rating", *found.columns[3:]]
    assert found.unseen_user.sum() == 1 and found.loc["row 7", "unseen_item"]


def test_columns_describe_unknown_users_as_in_a_file(featured_run: Path, tmp_path: Path) -> None:
    predictor = Predictor.load(featured_run)
    cells = {"user": ["a", "b", 1], "item": [1, 2, 3], "age": [20, None, 30], "history": "3|5=4"}
    frame = pd.DataFrame({**cells, "job": ["job 1", "job 2", None], "rating": 3.0})
    found = predictor.score(frame)
    frame.drop(columns="rating").to_csv(tmp_path / "pairs.csv", index=False)
    predict_file(predictor, tmp_path / "pairs.csv", tmp_path / "scores.parquet")
    file = pd.read_parquet(tmp_path / "scores.parquet")
    pd.testing.assert_frame_equal(found, file[found.columns])
    bare = predictor.score(frame[["user", "item"]])
    assert (found.watch != bare.watch).tolist() == [True, True, False]


def test_the_pieces_of_a_long_frame_follow_each_other(
    predictor: Predictor, pairs: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = predictor.score(pairs)
    monkeypatch.setattr(predict, "ROWS_PER_PIECE", 32)
    pd.testing.assert_frame_equal(predictor.score(pairs), whole, rtol=1e-6)


def test_columns_have_the_names_that_the_user_says(
    predictor: Predictor, pairs: pd.DataFrame
) -> None:
    renamed = pairs.rename(columns={"user": "visitor", "item": 3})
    found = predictor.score(renamed, user="visitor", item=3)
    pd.testing.assert_frame_equal(found, predictor.score(pairs))
    with pytest.raises(DataError, match=r"column 'visiter' \(user\) is missing; did you mean 'vi"):
        predictor.score(renamed, user="visiter", item=3)


def test_the_default_columns_are_those_that_the_data_were_prepared_from(
    run: Path, pairs: pd.DataFrame
) -> None:
    from dataclasses import replace

    loaded = Predictor.load(run)
    schema = replace(loaded.artifact.schema, command="prepare table --user visitor --item 'a page'")
    told = Predictor(replace(loaded.artifact, schema=schema))
    renamed = pairs.rename(columns={"user": "visitor", "item": "a page"})
    pd.testing.assert_frame_equal(told.score(renamed), loaded.score(pairs))
    pd.testing.assert_frame_equal(told.score(pairs), loaded.score(pairs))


@pytest.mark.parametrize("rows", [0, 1])
def test_frames_of_few_rows_and_of_other_libraries_are_scored(
    predictor: Predictor, pairs: pd.DataFrame, rows: int
) -> None:
    few = pairs[:rows]
    found = predictor.score(pa.Table.from_pandas(few, preserve_index=False))
    pd.testing.assert_frame_equal(found, predictor.score(few).reset_index(drop=True))
    assert len(found) == rows and found.watch.dtype == np.float32


def test_a_missing_id_is_named_with_its_row(predictor: Predictor, pairs: pd.DataFrame) -> None:
    broken = pairs.astype({"user": "Int64"})
    broken.iloc[4, broken.columns.get_loc("user")] = pd.NA
    with pytest.raises(DataError, match="DataFrame: row 5 has no id in 'user'"):
        predictor.score(broken)


@pytest.mark.parametrize("given", [[1, 2], "log.csv", {"user": [1]}])
def test_what_is_no_frame_needs_items(predictor: Predictor, given: Any) -> None:
    with pytest.raises(TypeError, match="one of items, or a DataFrame"):
        predictor.score(given)
    with pytest.raises(TypeError, match="user: of a DataFrame only"):
        predictor.score([1], [2], user="visitor")  # type: ignore[call-overload]


def test_ranked_lists_are_rows_as_the_command_writes_them(
    predictor: Predictor, tmp_path: Path
) -> None:
    users = [*predictor.users.ids.to_pylist()[:3], 987654]
    options: dict[str, Any] = {"exclude_seen": True, "score": "watch*rating"}
    found = predictor.recommend_frame(users, 4, **options)
    (tmp_path / "users.txt").write_text("\n".join(map(str, users)))
    recommend_file(predictor, tmp_path / "users.txt", tmp_path / "top.parquet", 4, **options)
    file = pd.read_parquet(tmp_path / "top.parquet")
    pd.testing.assert_frame_equal(found, file)
    assert len(found) == 16 and found["rank"].tolist() == [1, 2, 3, 4] * 4


def test_ranked_lists_of_a_column_and_of_new_users_are_rows(predictor: Predictor) -> None:
    column = pd.Series(predictor.users.ids.to_pylist()[:2], index=[5, 9])
    lists = predictor.recommend(column, 3)
    found = predictor.recommend_frame(column, 3)
    assert found.item.tolist() == [entry.item for one in lists for entry in one]
    mixed = predictor.recommend_frame([column.iloc[0], ColdUser()], 1)
    assert mixed.user.tolist() == [column.iloc[0], None]
    assert mixed.unseen_user.tolist() == [False, True]


def test_ids_in_the_index_are_found_there(predictor: Predictor, pairs: pd.DataFrame) -> None:
    moved = pairs.set_index(["user", "item"])
    found = predictor.score(moved)
    assert found.index.equals(moved.index)
    assert (found.watch.to_numpy() == predictor.score(pairs).watch.to_numpy()).all()


def test_the_list_of_a_described_user_comes_last(featured_run: Path) -> None:
    predictor = Predictor.load(featured_run)
    cold = {"history": [3, 5], "features": {"age": 20}}
    found = predictor.recommend_frame([1], 2, **cold)
    pd.testing.assert_frame_equal(found, predictor.recommend_frame([1, ColdUser(**cold)], 2))
    assert found.user.tolist() == [1, 1, None, None]
    assert found.item.tolist()[2:] == [e.item for e in predictor.recommend(k=2, **cold)[0]]


def test_lists_without_items_are_a_frame_without_rows(predictor: Predictor) -> None:
    user = predictor.users.ids[0].as_py()
    found = predictor.recommend_frame([user], candidates=[987654])
    assert len(found) == 0 and list(found)[:5] == ["user", "unseen_user", "rank", "item", "title"]
