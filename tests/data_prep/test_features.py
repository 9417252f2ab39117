"""Features of users, items and rows in `prepare table`, fitted to the training rows alone."""

from __future__ import annotations

import functools
import operator
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep import table
from data_prep.features.fitting import LARGEST, Fitted, fit, mean_and_std, note
from data_prep.features.spec import READ, parse, wanted
from recsys_moe.inference.ranking.item_filters import filter_columns
from recsys_moe.schema import DataError, FeatureColumn, FeatureKind, Schema
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
        ["u0", "u1", "u2"], [0, 1, 2], [-1.0, 1.0, 0.0]  # u2: not in training
    )  # fmt: skip
    assert (items["item"], items["feature:genres"], items["feature:year"]) == (
        ["a", "b", "c"], [[0, 2], [1], [0, 3]], [0.0, None, 10.0]  # Action, Comedy, Drama, War
    )  # fmt: skip
    assert sorted(columns(tmp_path / "o", "train")["feature:hour"]) == [0, 1, 1, 1]  # 17, 9 as text
    assert columns(tmp_path / "o", "test")["feature:hour"] == [2, 2]
    assert pq.read_table(tmp_path / "o" / "features.parquet").to_pydict() == {
        "side": ["user", "user", "item", "item", "item", "context", "context"],
        "feature": ["gender", "gender", "genres", "genres", "genres", "hour", "hour"],
        "index": [0, 1, 0, 1, 2, 0, 1],
        "value": ["f", "m", "Action", "Comedy", "Drama", "17", "9"],
    }


def test_titles_are_kept_and_only_they_can_be_filtered_by(
    tmp_path: Path,
) -> None:
    titles = pd.DataFrame({"what": ["a", "d"], "title": ["A", "D"], "genres": ["Drama", "War"]})
    given = {**split_files(tmp_path), **entities(tmp_path), **ASKED}
    schema = table.prepare(tmp_path / "o", items=save(titles, tmp_path / "titles.csv"), **given)
    items = columns(tmp_path / "o", "items")
    assert (items["title"], items["feature:year"]) == (["A", None, None], [0.0, None, 10.0])
    assert filter_columns(pq.read_table(tmp_path / "o" / "items.parquet")) == [
        "item", "title", "genres"
    ]  # fmt: skip
    names = [source.name for source in schema.sources]
    assert names == ["train.csv", "val.csv", "test.csv", "titles.csv", "users.csv", "items.csv"]


def test_titles_and_features_may_come_from_one_file(tmp_path: Path) -> None:
    given = {**split_files(tmp_path), **entities(tmp_path), **ASKED}
    schema = table.prepare(tmp_path / "o", items=given["item_features"], **given)
    assert columns(tmp_path / "o", "items")["genres"] == ["Drama|Action", "Comedy", "War|Action"]
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


NUMBERS = st.floats(-LARGEST, LARGEST)
TEXTS = st.text("abc", min_size=1, max_size=2)
ENTITIES = 60
SAME_FOLDER = HealthCheck.function_scoped_fixture


def fitted(kind: FeatureKind, values: list[Any]) -> Fitted:
    return fit(wanted("item", "x", kind), note(pa.array(values, READ[kind])))


@given(st.lists(NUMBERS, min_size=1, max_size=30), st.data())
def test_sums_are_exact_in_any_order_and_cut(numbers: list[float], data: st.DataObject) -> None:
    mean, std = mean_and_std(note(pa.array(numbers)))
    assert mean == statistics.mean(numbers)  # by fractions too
    assert std == pytest.approx(statistics.pstdev(numbers) or 1, rel=1e-12)
    shuffled = data.draw(st.permutations(numbers))
    cut = data.draw(st.integers(0, len(numbers)))
    parts = [note(pa.array(part, pa.float64())) for part in (shuffled[:cut], shuffled[cut:])]
    assert mean_and_std(functools.reduce(operator.add, parts)) == (mean, std)


@pytest.mark.parametrize(
    ("spec", "column", "separator"),
    [
        ("g:multi=genres", "genres", "|"),
        ("g:multi=genres:sep=,", "genres", ","),
        ("g:multi=genres:sep='|'", "genres", "|"),
        ('g:multi=a = b:c:sep=", "', "a = b:c", ", "),
        ("g:multi=genres:sep='", "genres", "'"),
    ],
)
def test_a_separator_may_be_any_text_in_quotes_or_not(
    spec: str, column: str, separator: str
) -> None:
    (one,) = parse("item", [spec])
    assert (one.source, one.separator) == (column, separator)


def test_numbers_are_in_standard_deviations_and_finite() -> None:
    one = fitted("numeric", [1.0, 3.0, None])
    assert one.encode(pa.array([5.0, None, 1.0])).to_pylist() == [3.0, None, -1.0]
    tiny = fitted("numeric", [1e-40, 3e-40])
    assert tiny.encode(pa.array([LARGEST])).to_pylist() == [LARGEST]


def rows_of_ids(hours: list[Any]) -> pd.DataFrame:
    """Every user and item has one row, so that each is in one split alone."""
    names = np.arange(ENTITIES)
    return pd.DataFrame({"who": names, "what": names, "clicked": names % 2, "hour": hours})


def prepare_all(folder: Path, features: pd.DataFrame, hours: list[Any]) -> Schema:
    files = {"user_features": features, "item_features": features}
    return table.prepare(
        folder / "o",
        input=save(rows_of_ids(hours), folder / "log.parquet"),
        user="who",
        item="what",
        tasks=["watch:binary=clicked"],
        **{name: save(data, folder / f"{name}.parquet") for name, data in files.items()},
        user_feature=["u_cat:categorical=cat", "u_num:numeric=num"],
        item_feature=["i_cats:multi=cats", "i_num:numeric=num"],
        context=["hour:numeric=hour"],
        protocol="hash",
        force=True,
    )


def features(values: list[tuple[Any, Any]]) -> pd.DataFrame:
    names = np.arange(ENTITIES)
    cats, numbers = zip(*values, strict=True)
    data = {"who": names, "what": names, "cat": cats, "cats": cats, "num": numbers}
    return pd.DataFrame(data).astype({"cat": "string", "cats": "string", "num": "float64"})


def trained(folder: Path) -> list[int]:
    """Users, and so items, of the training rows."""
    return sorted(columns(folder / "o", "train")["user_index"])  # type: ignore[type-var]


@given(st.data())
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_not_in_training_changes_no_vocabulary_and_no_scale(
    tmp_path: Path, data: st.DataObject
) -> None:
    base = [(f"{'xyz'[n % 3]}", n % 7 + 0.1) for n in range(ENTITIES)]
    hours = [float(n % 24) for n in range(ENTITIES)]
    schema = prepare_all(tmp_path, features(base), hours)
    known = trained(tmp_path)
    assert ENTITIES > len(known) > 30
    before = {n: pq.read_table(tmp_path / "o" / f"{n}.parquet") for n in ("features", "users")}
    others = [n for n in range(ENTITIES) if n not in known]
    cell = st.tuples(st.none() | TEXTS, st.none() | NUMBERS)
    for n in others:
        base[n], hours[n] = data.draw(cell), data.draw(NUMBERS)
    again = prepare_all(tmp_path, features(base), hours)
    assert trained(tmp_path) == known
    assert [again.user_features, again.item_features, again.context_features] == [
        schema.user_features, schema.item_features, schema.context_features
    ]  # fmt: skip
    assert pq.read_table(tmp_path / "o" / "features.parquet").equals(before["features"])
    users, items = (columns(tmp_path / "o", entity) for entity in ("users", "items"))
    assert pa.table(users).take(known).equals(pa.table(before["users"].to_pydict()).take(known))
    for n in others:  # "xyz" are known, "abc" are not: a category of their own, number 3
        new = None if base[n][0] is None else 3
        assert users["feature:u_cat"][n] == new
        assert items["feature:i_cats"][n] == (None if new is None else [new])
