"""doctor --data looks at the features of prepared data too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import table
from recsys_moe.lab.doctor import examine
from tests.data_prep.test_features import ASKED, entities, split_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table.prepare(tmp_path / "out", **split_files(tmp_path), **entities(tmp_path), **ASKED)
    return tmp_path / "out"


def replaced(folder: Path, name: str, column: str, values: Any) -> None:
    """In `name`, the file or the first part."""
    file = folder / f"{name}.parquet"
    path = file if file.is_file() else min((folder / name).glob("*.parquet"))
    data = pq.read_table(path)
    place = data.column_names.index(column)
    rest = data[column].combine_chunks().slice(len(values))  # of ids without a training row
    pq.write_table(data.set_column(place, column, pa.concat_arrays([values, rest])), path)


def without(folder: Path, name: str, column: str) -> None:
    path = folder / f"{name}.parquet"
    pq.write_table(pq.read_table(path).drop_columns([column]), path)


def told(folder: Path, size: int) -> None:
    raw = json.loads((folder / "schema.json").read_text())
    raw["user_features"][0]["size"] = size
    (folder / "schema.json").write_text(json.dumps(raw))


def test_whole_features_are_reported_with_their_kinds(folder: Path) -> None:
    report = examine(folder)
    assert (report.invalid, report.facts["data"]["features"]) == (
        [],
        {
            "gender": "categorical", "age": "numeric", "genres": "multi", "year": "numeric",
            "hour": "categorical",
        },
    )  # fmt: skip


INT, LISTS = pa.int32(), pa.list_(pa.int32())
SPOILT = {
    "column": (without, ("items", "feature:year"), "items.parquet: column 'feature:year' is miss"),
    "index": (
        replaced, ("users", "feature:gender", pa.array([0, 3], INT)),
        "users.parquet: 'feature:gender' must be in 0..2",
    ),
    "list": (
        replaced, ("items", "feature:genres", pa.array([[-1], [0]], LISTS)),
        "items.parquet: 'feature:genres' must be in 0..3",
    ),
    "null in a list": (
        replaced, ("items", "feature:genres", pa.array([[None], [0]], LISTS)),
        "'feature:genres' must have no null in a list",
    ),
    "number": (
        replaced, ("users", "feature:age", pa.array([float("nan"), 0], pa.float32())),
        "users.parquet: 'feature:age' must be finite",
    ),
    "context": (
        replaced, ("test", "feature:hour", pa.array([0, 9], INT)),
        "'feature:hour' must be in 0..2",
    ),
    "value": (
        replaced, ("features", "value", pa.array(["f", "f", "x", "y", "z", "1", "2"])),
        "features.parquet: user feature 'gender' must have 2 indices from 0 on",
    ),
    "place": (
        replaced, ("features", "index", pa.array([1, 0, 0, 1, 2, 0, 1], INT)),
        "features.parquet: user feature 'gender' must have 2 indices from 0 on",
    ),
    "name": (
        replaced, ("features", "feature", pa.array(["gender"] * 2 + ["genres"] * 3 + ["o"] * 2)),
        "context feature 'hour' must have 2 indices",
    ),
    "vocabulary": (without, ("features", "value"), "features.parquet: column 'value' is missing"),
    "size": (told, (1,), "users.parquet: 'feature:gender' must be in 0..1"),
    "other size": (told, (3,), "user feature 'gender' must have 3 indices from 0 on"),
    "file": (lambda f: (f / "features.parquet").unlink(), (), "features.parquet is missing"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "how", "message"), SPOILT.values(), ids=SPOILT)
def test_spoilt_features_are_named_and_end_with_3(
    spoil: Any, how: tuple[Any, ...], message: str, folder: Path
) -> None:
    spoil(folder, *how)
    report = examine(folder)
    assert report.exit_code == 3 and len(report.invalid) == 1
    assert report.invalid[0].startswith("--data ") and message in report.invalid[0]
