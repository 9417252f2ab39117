"""The writer: checks first, one step, and never over what it should not replace."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.rows import UNKNOWN_TIME, Examples, Prepared
from data_prep.write import writer
from recsys_moe import folders
from recsys_moe.schema import ConfigError, DataError, Schema, Task
from tests.data_prep.samples import columns, hashes

NAN = float("nan")


def examples(user: list[int], item: list[int], watch: list[float], rating: list[float]) -> Examples:
    return Examples(
        user=np.array(user),
        item=np.array(item),
        labels={"watch": np.array(watch, np.float32), "rating": np.array(rating, np.float32)},
        timestamp=np.array([5] + [UNKNOWN_TIME] * (len(user) - 1))[: len(user)],
    )


def prepared(**parts: Examples) -> Prepared:
    splits = {
        "train": examples([0, 1, 2], [0, 0, 2], [1, 0, 1], [4.0, NAN, 2.0]),
        "val": examples([0], [1], [1], [5.0]),
        "test": examples([1], [1], [0], [NAN]),
    }
    return Prepared(
        name="tiny",
        protocol="paper",
        vocabulary="all",
        tasks=(
            Task(name="watch", kind="binary", column="watch"),
            Task(name="rating", kind="regression", column="rating", low=1.0, high=5.0),
        ),
        splits={**splits, **parts},
        users=pa.table({"user": ["a", "b", "c"], "age": pa.array([7, None, 9], pa.int32())}),
        items=pa.table({"item": pa.array([3, 5, 8], pa.int64())}),
        seeds={},
        sources=(),
        command="",
        report={},
    )


def test_types_and_nulls_on_disk(tmp_path: Path) -> None:
    schema = writer.write(prepared(), tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "train" / "part-00000.parquet")
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("user_index", "int32"),
        ("item_index", "int32"),
        ("watch", "float"),
        ("rating", "float"),
        ("timestamp", "int64"),
    ]
    assert table.schema.metadata is None
    assert table["rating"].to_pylist() == [4.0, None, 2.0]
    assert table["timestamp"].to_pylist() == [5, None, None]
    assert columns(tmp_path / "out", "users") == {
        "user": ["a", "b", "c"],
        "user_index": [0, 1, 2],
        "age": [7, None, 9],
    }
    assert (schema.user.id_type, schema.item.id_type) == ("string", "int64")
    assert Schema.load(tmp_path / "out") == schema


def test_labels_are_counted_over_labelled_rows(tmp_path: Path) -> None:
    schema = writer.write(prepared(), tmp_path / "out")
    assert schema.labels["train"] == {
        "watch": {"labelled": 3, "mean": pytest.approx(2 / 3), "positive": 2},
        # 4 and 2: |4 - 3| = |2 - 3| = 1
        "rating": {"labelled": 2, "mean": (4 + 2) / 2, "std": 1.0, "min": 2.0, "max": 4.0},
    }
    nothing = {"labelled": 0, "mean": 0, "std": 0, "min": 0, "max": 0}
    assert schema.labels["test"]["rating"] == nothing


BAD = {
    "user index too large": ("val", examples([4], [1], [1], [5]), r"val: user_index .* 0\.\.2"),
    "negative item index": ("val", examples([0], [-1], [1], [5]), "val: item_index"),
    "binary label of 2": ("val", examples([0], [1], [2], [5]), "'watch' must be 0 or 1, got 2"),
    "rating above": ("val", examples([0], [1], [1], [6]), r"in 1\.0\.\.5\.0, got 6"),
    "infinite rating": ("val", examples([0], [1], [1], [np.inf]), "'rating' must be a finite"),
    "no rows": ("test", examples([], [], [], []), "the test split has no rows"),
    "pair in two splits": ("val", examples([2], [2], [1], [5]), "user_index 2 with item_index 2"),
}


@pytest.mark.parametrize(("split", "part", "message"), BAD.values(), ids=BAD)
def test_a_failed_check_writes_nothing(
    split: str, part: Examples, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        writer.write(prepared(**{split: part}), tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_is_kept_without_overwrite(tmp_path: Path) -> None:
    out = tmp_path / "out"
    writer.write(prepared(), out)
    before = hashes(out)
    other = prepared(val=examples([0, 2], [1, 1], [1, 1], [5, 4]))
    with pytest.raises(ConfigError, match="exists.*--overwrite"):
        writer.write(other, out)
    assert hashes(out) == before
    assert writer.write(other, out, force=True).rows["val"] == 2
    assert Schema.load(out).rows["val"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("moment", ["writing", "replacing"])
def test_an_interruption_keeps_the_previous_output(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    writer.write(prepared(), out)
    before = hashes(out)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if moment == "writing":
        monkeypatch.setattr(pq, "ParquetWriter", stop)
    else:
        rename = os.replace
        monkeypatch.setattr(folders, "_swapped", lambda one, other: False)
        monkeypatch.setattr(
            os, "replace", lambda p, to: stop() if Path(p).name == "new" else rename(p, to)
        )
    with pytest.raises(KeyboardInterrupt):
        writer.write(prepared(), out, force=True)
    assert hashes(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
