"""Weights of rows reach the batches, from memory and from disk; None where there are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from data_prep.synthetic import prepare
from recsys_moe.data.batches import EvalBatches, TrainBatches
from recsys_moe.data.columns import StoredColumns, load_columns
from recsys_moe.data.streaming import StreamBatches, row_bytes
from recsys_moe.schema import SCHEMA_FILE, DataError, Schema


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training rows in row groups of 100; the weight of a row is 1000 * user + item."""
    folder = tmp_path_factory.mktemp("weighted") / "data"
    schema = replace(prepare(folder, users=60, items=40, interactions=1000), weight="weight")
    (folder / SCHEMA_FILE).write_text(schema.to_json())
    set_weights(folder, None)
    return folder


def set_weights(folder: Path, last: float | None) -> None:
    part = next((folder / "train").glob("*.parquet"))
    table = pq.read_table(part)
    pairs = zip(table["user_index"].to_pylist(), table["item_index"].to_pylist(), strict=True)
    weights = [1000.0 * user + item for user, item in pairs]
    column = pa.array(weights if last is None else [*weights[:-1], last], pa.float32())
    table = table.select([n for n in table.column_names if n != "weight"])
    pq.write_table(table.append_column("weight", column), part, row_group_size=100)


def test_a_weight_stays_with_its_row_in_every_kind_of_batches(weighted: Path) -> None:
    schema = Schema.load(weighted)
    columns, stored = load_columns(weighted, schema, "train"), StoredColumns(
        weighted, schema, "train"
    )  # fmt: skip
    draws = {"id_dropout": 0.0, "seed": 0}
    for batches in (
        TrainBatches(columns, schema, 64, **draws),
        StreamBatches(stored, schema, 64, **draws, window=256),
        EvalBatches(columns, 64),
        EvalBatches(stored, 64),
    ):
        rows = 0
        for batch in batches:
            assert batch.weight is not None and batch.weight.dtype == torch.float32
            assert torch.equal(batch.weight, 1000.0 * batch.user + batch.item)
            rows += len(batch.weight)
        assert rows == schema.rows["train"]


def test_data_without_weights_give_none(prepared: Path) -> None:
    columns = load_columns(prepared, Schema.load(prepared), "val")
    assert all(batch.weight is None for batch in EvalBatches(columns, 16))


def test_a_row_with_a_weight_takes_four_bytes_more(weighted: Path) -> None:
    schema = Schema.load(weighted)
    assert row_bytes(schema) == row_bytes(replace(schema, weight=None)) + 4


@pytest.mark.parametrize("last", [-1.0, float("inf"), float("nan")])
def test_a_number_that_is_no_weight_is_refused(last: float, weighted: Path) -> None:
    set_weights(weighted, last)
    with pytest.raises(DataError, match=r"part-\d+\.parquet: weights .*>= 0"):
        load_columns(weighted, Schema.load(weighted), "train")
    set_weights(weighted, None)
