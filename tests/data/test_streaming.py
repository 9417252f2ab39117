"""Streaming: each row once on all ranks together, the order a function of the seed, exact lists."""

from __future__ import annotations

import csv
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys_moe.config.settings import parse_config
from recsys_moe.data.batches import EvalBatches, TrainBatches
from recsys_moe.data.columns import StoredColumns, load_columns
from recsys_moe.data.rows import Batch, Columns
from recsys_moe.data.streaming import (
    StreamBatches,
    open_rows,
    positive_items,
    row_bytes,
    user_counts,
)
from recsys_moe.errors import ConfigError
from recsys_moe.schema import DataError, Feature, Schema, Task
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from tests.conftest import TINY_MODEL

IDS = 10_000
TASKS = (
    Task(name="watch", kind="binary", column="watch"),
    Task(name="rating", kind="regression", column="rating"),
)


def schema_of(rows: int) -> Schema:
    user, item = (
        Feature(name=name, column=f"{name}_index", size=IDS, id_type="int64")
        for name in ("user", "item")
    )
    known = {"name": "x", "protocol": "paper", "vocabulary": "all", "labels": {}}
    return Schema(**known, user=user, item=item, tasks=TASKS, rows={"train": rows})  # type: ignore[arg-type]


def store(folder: Path, sizes: list[int]) -> StoredColumns:
    """Row i is user i, item i, watch 1, no rating; row groups of these sizes, two to a part."""
    (folder / "train").mkdir()
    start = 0
    for part in range(0, len(sizes), 2):
        names = ("user_index", "item_index", "watch", "rating")
        fields = pa.schema(zip(names, [pa.int32()] * 2 + [pa.float32()] * 2, strict=True))
        with pq.ParquetWriter(folder / "train" / f"part-{part:05d}.parquet", fields) as writer:
            for size in sizes[part : part + 2]:
                index = pa.array(np.arange(start, start + size, dtype=np.int32))
                ones = pa.array(np.ones(size, np.float32))
                writer.write_table(
                    pa.table([index, index, ones, pa.nulls(size, pa.float32())], schema=fields)
                )
                start += size
    return StoredColumns(folder, schema_of(start), "train")


def numbered(rows: int) -> Columns:
    index = torch.arange(rows, dtype=torch.int32)
    return Columns(index, index.clone(), torch.zeros(rows, 2))


def users(batches: list[Batch]) -> list[list[int]]:
    return [batch.user.tolist() for batch in batches]


@st.composite
def epochs(draw: st.DrawFn) -> dict[str, object]:
    world = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    if sum(sizes) < world:
        sizes.append(world)
    batch_size, window = draw(st.integers(1, 7)), draw(st.integers(1, 40))
    return {"world": world, "sizes": sizes, "batch_size": batch_size, "window": window}


@given(epochs(), st.integers(0, 3))
@settings(max_examples=60)
def test_all_ranks_together_see_each_row_once_in_equally_many_batches(
    case: dict[str, object], seed: int
) -> None:
    sizes, world, size = case["sizes"], case["world"], case["batch_size"]
    rows = sum(sizes)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        stored = store(Path(folder), sizes)  # type: ignore[arg-type]
        window, options = case["window"], {"id_dropout": 0.0, "seed": seed}
        ranks = [
            StreamBatches(
                stored, stored.schema, size, **options, window=window, rank=rank, world=world
            )  # type: ignore[call-overload]
            for rank in range(world)  # type: ignore[call-overload]
        ]
        found = [users(list(batches)) for batches in ranks]
    columns = numbered(rows)
    memory = [
        users(
            list(TrainBatches(columns, stored.schema, size, **options, rank=rank, world=world))  # type: ignore[arg-type]
        )
        for rank in range(world)  # type: ignore[call-overload]
    ]
    for epoch in (found, memory):
        assert sorted(row for rank in epoch for batch in rank for row in batch) == list(range(rows))
        assert {len(rank) for rank in epoch} == {-(-rows // (size * world))}  # type: ignore[operator]
        for rank in epoch:
            assert all(len(batch) == size for batch in rank[:-1])
            assert len(rank[-1]) <= size  # type: ignore[operator]
    assert [list(map(len, rank)) for rank in found] == [list(map(len, rank)) for rank in memory]


def test_fewer_rows_than_processes_are_refused(tmp_path: Path) -> None:
    stored = store(tmp_path, [2])
    for kind, rows, more in (
        (StreamBatches, stored, {"window": 9}),
        (TrainBatches, numbered(2), {}),
    ):
        with pytest.raises(DataError, match="training has 2 rows for 3 devices"):
            kind(rows, stored.schema, 4, id_dropout=0.0, seed=0, world=3, **more)  # type: ignore[operator]


def test_several_processes_take_the_rows_and_hidden_ids_of_one_with_larger_batches() -> None:
    columns, schema = numbered(1000), schema_of(1000)
    draws = {"id_dropout": 0.2, "seed": 5}
    whole = list(TrainBatches(columns, schema, 96, **draws))
    shares = [
        list(TrainBatches(columns, schema, 32, **draws, rank=rank, world=3)) for rank in range(3)
    ]
    assert len(whole) == 11  # 1000 = 10 * 96 + 40; the last 40 rows are shared 13, 13, 14
    assert [len(share[-1].user) for share in shares] == [13, 13, 14]
    for number, batch in enumerate(whole):
        for field in range(2):
            together = torch.cat([share[number][field] for share in shares])
            assert torch.equal(together, batch[field])


@pytest.mark.parametrize("window", [7, 24, 1000])
@pytest.mark.parametrize("kind", ["stream", "memory"])
def test_a_later_start_leaves_out_batches_and_changes_none(
    kind: str, window: int, tmp_path: Path
) -> None:
    stored = store(tmp_path, [20, 13, 30, 4])

    def batches(start: int) -> list[list[int]]:
        draws = {"id_dropout": 0.3, "seed": 2}
        if kind == "memory":
            loader = TrainBatches(stored.load(), stored.schema, 8, **draws, start=start)
        else:
            loader = StreamBatches(stored, stored.schema, 8, **draws, window=window, start=start)  # type: ignore[assignment]
        assert len(loader) == 9  # of the whole epoch: 67 rows = 8 * 8 + 3
        return users(list(loader))

    for start in (0, 1, 3, 8, 9):
        assert batches(start) == batches(0)[start:]


def test_windows_that_are_skipped_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = store(tmp_path, [16] * 8)
    read: list[int] = []
    group = stored.group
    monkeypatch.setattr(stored, "group", lambda n: (read.append(n), group(n))[1])
    list(StreamBatches(stored, stored.schema, 8, id_dropout=0.0, seed=0, window=32, start=12))
    assert len(read) == 2  # batches 12 to 15 are the last window of 32 rows: two row groups
    read.clear()
    shares = StreamBatches(
        stored, stored.schema, 8, id_dropout=0.0, seed=0, window=32, rank=1, world=4
    )
    list(shares)
    assert len(read) == 2  # a fourth of the rows


def test_windows_mix_the_rows_of_several_row_groups_and_epochs_differ(tmp_path: Path) -> None:
    stored = store(tmp_path, [10] * 10)

    def order(seed: int) -> list[int]:
        batches = StreamBatches(stored, stored.schema, 5, id_dropout=0.0, seed=seed, window=50)
        return sum(users(list(batches)), [])

    first = order(1)
    assert first == order(1) != order(2)
    groups = {row // 10 for row in first[:50]}
    assert len(groups) == 5  # five row groups fill the first window
    assert len({row // 10 for row in first[:10]}) >= 3  # and are mixed in it


def test_every_window_and_process_draws_its_own(tmp_path: Path) -> None:
    stored = store(tmp_path, [10] * 20)

    def hidden(rank: int) -> list[list[bool]]:
        draws = {"id_dropout": 0.5, "seed": 0}
        batches = StreamBatches(stored, stored.schema, 10, **draws, window=50, rank=rank, world=2)
        flat = torch.cat([batch.user for batch in batches]) == IDS
        return [window.tolist() for window in flat.split(50)]

    windows = [*hidden(0), *hidden(1)]
    assert len(windows) == 4
    assert len({tuple(window) for window in windows}) == 4


def test_streamed_evaluation_gives_the_batches_of_memory(tmp_path: Path) -> None:
    stored = store(tmp_path, [5, 17, 1, 30])
    expected = [part.tolist() for part in stored.load().user.split(8)]
    for rows in (stored, stored.load()):
        assert users(list(EvalBatches(rows, 8))) == expected
        ranks = [EvalBatches(rows, 8, rank=rank, world=3) for rank in range(3)]
        assert sum((users(list(rank)) for rank in ranks), []) == expected
        assert [len(rank) for rank in ranks] == [2, 2, 3]  # 53 rows are 7 batches


def test_lists_made_in_chunks_are_those_of_all_rows_at_once(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small row groups, blocks of 50 rows to sort, and rows whose user or item is OOV."""
    monkeypatch.setattr("recsys_moe.data.streaming.SORTED_AT_ONCE", 50)
    whole = load_columns(prepared, Schema.load(prepared), "train")
    whole.user[::9], whole.item[::7] = 60, 40
    full = Schema.load(prepared)
    (tmp_path / "train").mkdir()
    table = pq.read_table(prepared / "train")
    table = table.set_column(0, "user_index", pa.array(whole.user.numpy()))
    table = table.set_column(1, "item_index", pa.array(whole.item.numpy()))
    pq.write_table(table, tmp_path / "train" / "part.parquet", row_group_size=100)
    for schema in (full, replace(full, tasks=full.tasks[1:])):
        stored = StoredColumns(tmp_path, schema, "train")
        counts = torch.bincount(whole.user, minlength=61)[:60]
        assert torch.equal(user_counts(stored, schema), counts)
        seen = positive_items(stored, schema)
        mask = whole.user < 60
        if len(schema.tasks) == 2:
            mask &= whole.labels[:, 0] == 1
        expected = sorted(zip(whole.user[mask].tolist(), whole.item[mask].tolist(), strict=True))
        lengths = seen["offsets"].diff()
        user = torch.repeat_interleave(torch.arange(60), lengths).tolist()
        assert list(zip(user, seen["items"].tolist(), strict=True)) == expected


def test_a_split_larger_than_its_memory_stays_on_disk(prepared: Path) -> None:
    schema = Schema.load(prepared)
    rows = schema.rows["train"]
    assert row_bytes(schema) == 24  # two indices, two labels, 4 bytes each, and a place of 8
    assert isinstance(open_rows(prepared, schema, "train", rows), Columns)
    assert isinstance(open_rows(prepared, schema, "train", rows - 1), StoredColumns)

    def loader(**data: object) -> object:
        return RecDataModule(prepared, parse_config({"data": data})).train_batches(0)

    assert isinstance(loader(), TrainBatches)
    assert isinstance(loader(shuffle_buffer=rows), TrainBatches)
    streamed = loader(shuffle_buffer=rows - 1)
    assert isinstance(streamed, StreamBatches)
    assert streamed.window == rows - 1
    with pytest.raises(ConfigError, match=r"data.shuffle_buffer.*got 0"):
        loader(shuffle_buffer=0)


def curves(run: Path) -> list[list[str]]:
    """train/loss and val/loss of every epoch."""
    with (run / "metrics.csv").open() as lines:
        return [[row["train/loss"], row["val/loss"]] for row in csv.DictReader(lines)]


def test_fit_streams_to_much_the_same_loss_and_holds_all_rows_where_its_window_does(
    prepared: Path, run: Path, tmp_path: Path
) -> None:
    def trained(name: str, window: int) -> Path:
        data = {"shuffle_buffer": window}
        trainer = {"max_epochs": 2, "batch_size": 64}
        fit(
            parse_config({"model": TINY_MODEL, "trainer": trainer, "data": data}),
            prepared,
            tmp_path / name,
        )
        return tmp_path / name

    rows = Schema.load(prepared).rows["train"]
    assert curves(trained("whole", rows)) == curves(run)
    streamed = trained("streamed", 640)
    assert curves(streamed) != curves(run) and len(curves(streamed)) == 2
    last = float(curves(streamed)[-1][1])
    assert last == pytest.approx(float(curves(run)[-1][1]), rel=0.2)
