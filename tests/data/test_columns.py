"""Batches: every row once, an order from (seed, epoch), labels null where missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from recsys_moe.data.batches import EvalBatches, TrainBatches
from recsys_moe.data.columns import load_columns
from recsys_moe.data.rows import Batch, Columns
from recsys_moe.schema import DataError, Schema


def numbered(rows: int) -> Columns:
    """Row i is user i, item i."""
    index = torch.arange(rows, dtype=torch.int32)
    return Columns(index, index.clone(), torch.zeros(rows, 2))


def epoch(columns: Columns, schema: Schema, seed: int = 0, rate: float = 0.0) -> list[Batch]:
    return list(TrainBatches(columns, schema, 64, id_dropout=rate, seed=seed))


@pytest.fixture
def schema(prepared: Path) -> Schema:
    return Schema.load(prepared)


def test_an_epoch_holds_every_row_once_and_keeps_the_partial_batch(schema: Schema) -> None:
    batches = epoch(numbered(200), schema)
    assert [len(batch.user) for batch in batches] == [64, 64, 64, 8]
    assert len(TrainBatches(numbered(200), schema, 64, id_dropout=0.0, seed=0)) == 4
    assert sorted(torch.cat([batch.user for batch in batches]).tolist()) == list(range(200))
    assert all(torch.equal(batch.user, batch.item) for batch in batches)  # rows stay together


def test_the_order_is_a_function_of_the_seed(schema: Schema) -> None:
    first, second, other = (epoch(numbered(200), schema, seed) for seed in (1, 1, 2))
    assert torch.equal(first[0].user, second[0].user)
    assert not torch.equal(first[0].user, other[0].user)


def test_a_share_of_the_ids_is_hidden_and_the_data_stay_untouched(schema: Schema) -> None:
    columns = Columns(*(torch.zeros(20_000, dtype=torch.int32),) * 2, torch.zeros(20_000, 2))
    batches = epoch(columns, schema, rate=0.1)
    users = torch.cat([batch.user for batch in batches]) == schema.user.size
    items = torch.cat([batch.item for batch in batches]) == schema.item.size
    # 20,000 draws at 0.1: five standard errors are 5 sqrt(.09 / 20000) = .0106
    for hidden in (users, items):
        assert hidden.double().mean().item() == pytest.approx(0.1, abs=0.0106)
    # independently, so both of a row at .01: 5 sqrt(.0099 / 20000) = .0035
    assert (users & items).double().mean().item() == pytest.approx(0.01, abs=0.0035)
    assert (columns.user == 0).all()


def test_evaluation_slices_share_memory_with_the_columns() -> None:
    columns = numbered(10)
    batches = list(EvalBatches(columns, 4))
    assert [len(batch.user) for batch in batches] == [4, 4, 2]
    assert batches[1].user.data_ptr() == columns.user[4:].data_ptr()


def test_missing_labels_arrive_as_nan(prepared: Path, schema: Schema) -> None:
    columns = load_columns(prepared, schema, "train")
    frame = pd.read_parquet(prepared / "train")
    assert len(columns) == len(frame) == schema.rows["train"]
    rating = [task.name for task in schema.tasks].index("rating")
    missing = frame["rating"].isna().to_numpy()
    assert missing.any() and (columns.labels[:, rating].isnan().numpy() == missing).all()


def damage_truncate(folder: Path) -> None:
    part = next((folder / "train").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:100])


def damage_empty(folder: Path) -> None:
    shutil.rmtree(folder / "train")


def damage_column(folder: Path) -> None:
    part = next((folder / "train").glob("*.parquet"))
    pq.write_table(pq.read_table(part).drop_columns(["watch"]), part)


def set_one_index(folder: Path, index: int) -> None:
    part = next((folder / "train").glob("*.parquet"))
    table = pq.read_table(part)
    indices = [*table["user_index"].to_pylist()[1:], index]
    pq.write_table(table.set_column(0, "user_index", pa.array(indices, pa.int32())), part)


def damage_rows(folder: Path) -> None:
    part = next((folder / "train").glob("*.parquet"))
    pq.write_table(pq.read_table(part).slice(1), part)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_truncate, "cannot be read as Parquet"),
        (damage_empty, "has no Parquet part"),
        (damage_column, "column 'watch' is missing"),
        (damage_rows, "schema.json says"),
    ],
)
def test_damaged_data_are_refused_by_name(
    prepared: Path, tmp_path: Path, damage: object, message: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(prepared, folder)
    damage(folder)  # type: ignore[operator]
    with pytest.raises(DataError, match=message) as caught:
        load_columns(folder, Schema.load(folder), "train")
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("index", "is_known"), [(-1, False), (0, True), (60, True), (61, False)])
def test_indices_are_those_of_the_users_and_the_oov_index(
    index: int, is_known: bool, prepared: Path, tmp_path: Path
) -> None:
    """60 users: 0 to 59, and 60 for whom training has not seen."""
    folder = shutil.copytree(prepared, tmp_path / "data")
    set_one_index(folder, index)
    if is_known:
        assert load_columns(folder, Schema.load(folder), "train").user[-1] == index
    else:
        with pytest.raises(DataError, match=r"indices must be in 0\.\.60"):
            load_columns(folder, Schema.load(folder), "train")


@pytest.mark.slow
def test_reading_a_split_imports_no_pandas(prepared: Path) -> None:
    """It would take 45 MB for as long as the training runs."""
    code = (
        "import sys; from pathlib import Path; from recsys_moe.data.columns import load_columns; "
        "from recsys_moe.schema import Schema; folder = Path(sys.argv[1]); "
        "print(len(load_columns(folder, Schema.load(folder), 'train')), 'pandas' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(prepared)],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    rows = Schema.load(prepared).rows["train"]
    assert done.stdout.split() == [str(rows), "False"], done.stderr


@pytest.mark.parametrize("column", ["user_index", "watch"])
def test_a_column_of_words_is_refused_by_name(
    column: str, prepared: Path, schema: Schema, tmp_path: Path
) -> None:
    shutil.copytree(prepared, tmp_path / "data")
    part = next((tmp_path / "data" / "train").glob("*.parquet"))
    table = pq.read_table(part)
    words = pa.array(["many"] * table.num_rows)
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, words), part)
    with pytest.raises(DataError, match=f"{part.name} .*Parquet: .*'many'"):
        load_columns(tmp_path / "data", schema, "train")


@pytest.mark.parametrize(
    ("task", "label", "message"),
    [
        ("watch", 2.0, "binary .*0 or 1"),
        ("watch", 0.5, "binary .*0 or 1"),
        ("watch", float("nan"), "labels must be finite"),
        ("rating", float("inf"), "labels must be finite"),
    ],
)
def test_a_label_that_no_preparation_writes_is_refused(
    prepared: Path, tmp_path: Path, task: str, label: float, message: str
) -> None:
    data = Path(shutil.copytree(prepared, tmp_path / "data"))
    part = next((data / "val").glob("*.parquet"))
    table = pq.read_table(part)
    values = [label, *table[task].to_pylist()[1:]]
    place = table.column_names.index(task)
    pq.write_table(table.set_column(place, task, pa.array(values, pa.float32())), part)
    with pytest.raises(DataError, match=message):
        load_columns(data, Schema.load(data), "val")
