"""Features and bags as lists of table rows, from prepared folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from recsys_moe.data.columns import StoredColumns, load_columns
from recsys_moe.data.entries import bag_entries, feature_entries, table_rows
from recsys_moe.data.rows import Columns
from recsys_moe.data.streaming import positive_items
from recsys_moe.errors import DataError
from recsys_moe.schema import FeatureColumn, Schema
from tests.features import AGE, GENRES, JOB


def written(path: Path, feature: FeatureColumn, values: list[Any], kind: pa.DataType) -> Path:
    pq.write_table(pa.table({feature.column: pa.array(values, kind)}), path)
    return path


def test_a_table_has_a_row_per_category_one_for_unknown_ones_and_one_per_number() -> None:
    assert table_rows([JOB, AGE, GENRES]) == (3 + 1) + 1 + (4 + 1)


def test_entries_are_category_number_and_shares_of_lists(tmp_path: Path) -> None:
    """Blocks: job 0..3, age 4, genres 5..9. The last start is that of the OOV id."""
    columns = {
        JOB.column: pa.array([2, None, 3], pa.int32()),  # 3: unknown to training
        AGE.column: pa.array([-0.5, 1.0, None], pa.float32()),
        GENRES.column: pa.array([[0, 3], None, []], pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(columns), tmp_path / "users.parquet")
    found = feature_entries(tmp_path / "users.parquet", [JOB, AGE, GENRES], 3)
    assert found.first.tolist() == [0, 4, 5, 6, 6]
    assert found.row.tolist() == [2, 4, 5, 8, 4, 3]
    half = 2**-0.5
    assert found.weight.tolist() == pytest.approx([1, -0.5, half, half, 1, 1])
    assert found.row.dtype == torch.int32


def test_several_chunks_are_read_as_one(tmp_path: Path) -> None:
    """More rows than pyarrow reads into one chunk of a list column."""
    values = [[n % 4] for n in range(200_000)]
    path = written(tmp_path / "items.parquet", GENRES, values, pa.list_(pa.int32()))
    found = feature_entries(path, [GENRES], 200_000)
    assert found.row.tolist() == [n % 4 for n in range(200_000)]
    assert found.first[-1] == 200_000


@pytest.mark.parametrize("values", [[None, None], [[], None]])
def test_features_that_are_missing_everywhere_have_no_entry(
    values: list[Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "items.parquet", GENRES, values, pa.list_(pa.int32()))
    assert feature_entries(path, [GENRES], 2).first.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("feature", "values", "kind", "message"),
    [
        (JOB, [0, 4], pa.int32(), r"'feature:job' must be in 0\.\.3"),
        (JOB, [0, -1], pa.int32(), r"'feature:job' must be in 0\.\.3"),
        (GENRES, [[0], [5]], pa.list_(pa.int32()), r"'feature:genres' must be in 0\.\.4"),
        (GENRES, [[0, None], []], pa.list_(pa.int32()), "must have no null in a list"),
        (AGE, [0.0, float("nan")], pa.float32(), "'feature:age' must be finite"),
        (AGE, [0.0, float("inf")], pa.float32(), "'feature:age' must be finite"),
        (AGE, [0.0], pa.float32(), "must .*got 1"),
        (AGE, ["old", "new"], pa.string(), "cannot be read as Parquet"),
        (GENRES, [1, 2], pa.int32(), "'feature:genres' must be lists"),
    ],
)
def test_what_no_preparation_writes_is_refused(
    feature: FeatureColumn, values: list[Any], kind: pa.DataType, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "users.parquet", feature, values, kind)
    with pytest.raises(DataError, match=message):
        feature_entries(path, [feature], 2)
    with pytest.raises(DataError, match="column 'feature:else' is missing"):
        feature_entries(path, [replace(feature, name="else")], 2)


def rows(watch: list[float], rating: list[float]) -> Columns:
    """Rows of users 1, 0, 1, 1, 60, 0 and items 3, 2, 0, 3, 1, 40; 60 and 40 are OOV."""
    user, item = torch.tensor([1, 0, 1, 1, 60, 0]), torch.tensor([3, 2, 0, 3, 1, 40])
    labels = torch.stack([torch.tensor(watch), torch.tensor(rating)], 1)
    return Columns(user.int(), item.int(), labels)


def test_a_bag_holds_positives_and_rated_items_each_once(prepared: Path) -> None:
    schema, nan = Schema.load(prepared), torch.nan
    labels = schema.labels["train"]["rating"]
    assert (schema.user.size, schema.item.size, labels["min"], labels["max"]) == (60, 40, 1, 5)
    made = rows([1, 0, 0, 1, 1, 1], [5, nan, 2, 1, 4, 4])
    items = bag_entries(made, schema, None)
    assert items.row.tolist() == [0, 3]  # of user 1; item 2 is not a positive of user 0
    assert items.first.tolist() == [0, 0, *[2] * 60]
    assert bag_entries(made, schema, 5).row.tolist() == [1 * 40 + 0, 4 * 40 + 3]
    of_items = bag_entries(made, schema, 5, of_items=True)
    assert of_items.row.tolist() == [1 * 60 + 1, 4 * 60 + 1]  # items 0 and 3: user 1, levels 1, 4
    assert of_items.first.tolist() == [0, 1, 1, 1, *[2] * 38]
    unrated = rows([0, 1, 1, 0, 0, 0], [nan] * 6)
    assert bag_entries(unrated, schema, 5).row.tolist() == [5 * 40 + 2, 5 * 40 + 0]


def test_levels_need_the_range_of_the_labels(prepared: Path) -> None:
    schema = replace(Schema.load(prepared), labels={"train": {"rating": {}}})
    with pytest.raises(DataError, match=r"schema\.json: labels\.train .*'min'"):
        bag_entries(rows([1] * 6, [1] * 6), schema, 5)


def test_bags_are_the_positives_that_recommend_leaves_out(prepared: Path) -> None:
    schema = Schema.load(prepared)
    columns = load_columns(prepared, schema, "train")
    seen, found = positive_items(columns, schema), bag_entries(columns, schema, None)
    assert torch.equal(found.row, seen["items"])
    assert torch.equal(found.first[:-1], seen["offsets"])
    stored = bag_entries(StoredColumns(prepared, schema, "train"), schema, None)
    assert torch.equal(found.row, stored.row)
