"""Features of users, items and rows in `prepare table`: what lies in the prepared folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from data_prep import table
from recsys_moe.inference.ranking.item_filters import filter_columns
from recsys_moe.schema import DataError, FeatureColumn, Schema
from tests.data_prep.samples import columns, hashes, save

# u0 and u1 train, u2 is in val and test only, u9 in no row.
USERS = [("u0", "f", 20.0), ("u1", "m", 40.0), ("u2", "x", 30.0), ("u9", "q", 900.0)]
ITEMS = [("a", "Drama|Action", 1990), ("b", "Comedy", None), ("c", "War|Action", 2000)]
ROWS = [("u0", "a", 9), ("u0", "b", 17), ("u1", "a", 9), ("u1", "b", 9)]
ASKED: dict[str, Any] = {
    "user": "who",
    "item": "what",
    "tasks": ["watch:binary=clicked"],
    "user_feature": ["gender:categorical=sex", "age:numeric=years"],
    "item_feature": ["genres:multi=genres", "year:numeric=year"],
    "context": ["hour:categorical=hour"],
}


def rows(*more: tuple[str, str, int]) -> pd.DataFrame:
    data = pd.DataFrame([*ROWS, *more], columns=["who", "what", "hour"])
    return data.assign(clicked=[n % 2 for n in range(len(data))])


def entities(folder: Path) -> dict[str, Path]:
    users = pd.DataFrame(USERS, columns=["who", "sex", "years"])
    items = pd.DataFrame(ITEMS, columns=["what", "genres", "year"])
    return {
        "user_features": save(users, folder / "users.csv"),
        "item_features": save(items, folder / "items.csv"),
    }


def split_files(folder: Path) -> dict[str, Path]:
    """Training rows of u0 and u1 with a and b; val and test have u2, c and the hour 23 as well."""
    other = rows(("u2", "c", 23), ("u0", "c", 23)).iloc[4:]
    parts = {"train": rows(), "val": other, "test": other.assign(who=["u1", "u2"], what=["c", "a"])}
    return {name: save(part, folder / f"{name}.csv") for name, part in parts.items()}


def test_columns_hold_indices_lists_and_standardised_numbers(tmp_path: Path) -> None:
    schema = table.prepare(tmp_path / "o", **split_files(tmp_path), **entities(tmp_path), **ASKED)
    assert Schema.load(tmp_path / "o") == schema
    assert schema.user_features == (
        FeatureColumn(name="gender", kind="categorical", size=2),
        FeatureColumn(name="age", kind="numeric", mean=30.0, std=10.0),  # of 20 and 40
    )
    assert schema.item_features == (
        FeatureColumn(name="genres", kind="multi", size=3),
        FeatureColumn(name="year", kind="numeric", mean=1990.0, std=1.0),  # a deviation of 0 is 1
    )
    assert schema.context_features == (FeatureColumn(name="hour", kind="categorical", size=2),)
    users, items = columns(tmp_path / "o", "users"), columns(tmp_path / "o", "items")
    assert (users["user"], users["feature:gender"], users["feature:age"]) == (
        ["u0", "u1"], [0, 1], [-1.0, 1.0]
    )  # fmt: skip
    assert (items["item"], items["feature:genres"], items["feature:year"]) == (
        ["a", "b"], [[0, 2], [1]], [0.0, None]  # Action, Comedy, Drama
    )  # fmt: skip
    assert sorted(columns(tmp_path / "o", "train")["feature:hour"]) == [0, 1, 1, 1]  # 17, 9 as text
    assert columns(tmp_path / "o", "test")["feature:hour"] == [2, 2]
    assert pq.read_table(tmp_path / "o" / "features.parquet").to_pydict() == {
        "side": ["user", "user", "item", "item", "item", "context", "context"],
        "feature": ["gender", "gender", "genres", "genres", "genres", "hour", "hour"],
        "index": [0, 1, 0, 1, 2, 0, 1],
        "value": ["f", "m", "Action", "Comedy", "Drama", "17", "9"],
    }


def test_titles_to_show_lie_beside_features_and_only_they_are_there_for_filters(
    tmp_path: Path,
) -> None:
    titles = pd.DataFrame({"what": ["a", "d"], "title": ["A", "D"], "genres": ["Drama", "War"]})
    given = {**split_files(tmp_path), **entities(tmp_path), **ASKED}
    schema = table.prepare(tmp_path / "o", items=save(titles, tmp_path / "titles.csv"), **given)
    items = columns(tmp_path / "o", "items")
    assert (items["title"], items["feature:year"]) == (["A", None], [0.0, None])
    assert filter_columns(pq.read_table(tmp_path / "o" / "items.parquet")) == [
        "item", "title", "genres"
    ]  # fmt: skip
    names = [source.name for source in schema.sources]
    assert names == ["train.csv", "val.csv", "test.csv", "titles.csv", "users.csv", "items.csv"]


def test_titles_and_features_may_come_from_one_file(tmp_path: Path) -> None:
    given = {**split_files(tmp_path), **entities(tmp_path), **ASKED}
    schema = table.prepare(tmp_path / "o", items=given["item_features"], **given)
    assert columns(tmp_path / "o", "items")["genres"] == ["Drama|Action", "Comedy"]
    assert [source.name for source in schema.sources].count("items.csv") == 1


def test_a_column_of_the_titles_must_not_be_named_like_one_of_features(tmp_path: Path) -> None:
    titles = pd.DataFrame({"what": ["a"], "feature:year": [1]})
    given = {**split_files(tmp_path), **entities(tmp_path), **ASKED}
    with pytest.raises(DataError, match="--items .*'feature:year'"):
        table.prepare(tmp_path / "o", items=save(titles, tmp_path / "titles.csv"), **given)
    assert not (tmp_path / "o").exists()


def test_prepared_data_with_features_can_be_replaced(tmp_path: Path) -> None:
    given = {**split_files(tmp_path), **entities(tmp_path), **ASKED}
    table.prepare(tmp_path / "o", **given)
    before = hashes(tmp_path / "o")
    table.prepare(tmp_path / "o", **given, force=True)
    assert hashes(tmp_path / "o") == before
    plain = {name: value for name, value in given.items() if "feature" not in name}
    table.prepare(tmp_path / "o", **{**plain, "context": None}, force=True)
    assert "features.parquet" not in hashes(tmp_path / "o")
