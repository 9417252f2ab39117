"""The contract on disk refuses what it does not understand."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data_prep.rows import Examples, Prepared
from data_prep.write.writer import write
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.files import sha256_file
from recsys_moe.schema import RESERVED, SPLITS, DataError, FeatureColumn, Schema, Task


def test_json_round_trip_is_exact(prepared: Path) -> None:
    text = (prepared / "schema.json").read_text()
    assert Schema.from_json(text).to_json() == text


def test_a_folder_without_schema_is_not_prepared_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not prepared data.*recsys-moe prepare"):
        Schema.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format_version .*got 99"),
        ({"rows": None, "surprise": 1}, "surprise"),
        ({"user": None}, "schema.json"),
        (
            {"user_features": [{"name": "age", "kind": "ordinal"}]},
            "user_features.0.kind must be 'cat.*got 'ordinal'",
        ),
        (
            {"tasks": [{"name": "a", "kind": "ordnal", "column": "a"}]},
            "tasks.0.kind must be 'binary'",
        ),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_in_one_line(
    prepared: Path, change: dict[str, object], message: str
) -> None:
    raw = {**json.loads((prepared / "schema.json").read_text()), **change}
    with pytest.raises(DataError, match=message) as caught:
        Schema.from_json(json.dumps(raw))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", ".*object, got list"),
        ('{"format_version": 1}', "key 'name' is missing"),
    ],
)
def test_damaged_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"^schema\.json: {message}"):
        Schema.from_json(text)


def named(text: str, *names: str) -> str:
    """schema.json with its tasks, binary and regression, called so."""
    raw = json.loads(text)
    tasks = [{**task, "name": name} for task, name in zip(raw["tasks"], names, strict=True)]
    return json.dumps({**raw, "tasks": tasks})


@pytest.mark.parametrize("names", [*((name, "y") for name in RESERVED), ("y", "y_calibrated")])
def test_a_task_with_the_name_of_another_output_column_is_refused(
    prepared: Path, names: tuple[str, str]
) -> None:
    text = (prepared / "schema.json").read_text()
    with pytest.raises(DataError, match=r"^schema\.json: task name must not be "):
        Schema.from_json(named(text, *names))
    with pytest.raises(DataError, match=r"^schema\.json: task .*got 'y' twice"):
        Schema.from_json(named(text, "y", "y"))
    # a regression has no calibrated column
    assert Schema.from_json(named(text, "y_calibrated", "y")).tasks[1].name == "y"
    with pytest.raises(DataError, match="got 'mass'"):
        Schema.from_json(json.dumps({**json.loads(named(text, "mass", "y")), "weight": "mass"}))


def test_an_artifact_whose_task_has_the_name_of_a_column_is_refused(
    run: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(run / "model", tmp_path / "model")
    schema, manifest = folder / "schema.json", folder / "manifest.json"
    schema.write_text(named(schema.read_text(), "rank", "rating"))
    content = json.loads(manifest.read_text())
    content["files"]["schema.json"] = sha256_file(schema)
    manifest.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"schema\.json: .*task .*got 'rank'"):
        load_artifact(folder)


def test_a_source_whose_task_has_the_name_of_a_column_is_refused(tmp_path: Path) -> None:
    rows = Examples(
        user=np.zeros(3, int),
        item=np.arange(3),
        labels={"rank": np.ones(3, np.float32)},
        timestamp=np.zeros(3, int),
    )
    prepared = Prepared(
        name="x",
        protocol="paper",
        vocabulary="all",
        tasks=(Task(name="rank", kind="binary", column="rank"),),
        splits={split: rows.take(np.array([n])) for n, split in enumerate(SPLITS)},
        users=pa.table({"user": [1]}),
        items=pa.table({"item": [1, 2, 3]}),
        seeds={},
        sources=(),
        command="",
        report={},
    )
    with pytest.raises(DataError, match=".*task .*got 'rank'"):
        write(prepared, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_schema_with_features_is_version_2_and_one_without_still_version_1(
    prepared: Path,
) -> None:
    plain = Schema.load(prepared)
    assert json.loads(plain.to_json())["format_version"] == 1
    genres = FeatureColumn(name="genres", kind="multi", size=3)
    text = replace(plain, item_features=(genres,)).to_json()
    assert json.loads(text)["format_version"] == 2
    assert Schema.from_json(text).item_features == (genres,)
    assert genres.column == "feature:genres"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rows", {"train": 1.5}, "rows.train must be a valid integer, got 1.5"),
        ("weight", 3, "weight must be a valid string, got 3"),
        ("seeds", {"split": True}, "seeds.split must be a valid integer, got True"),
        ("labels", {"val": {"watch": {"mean": float("nan")}}}, "labels.val.watch.mean.* finite"),
    ],
)
def test_a_value_of_another_type_is_named_by_its_path(
    prepared: Path, key: str, value: object, message: str
) -> None:
    raw = json.loads((prepared / "schema.json").read_text()) | {key: value}
    with pytest.raises(DataError, match=rf"^schema\.json: {message}.*; prepare the data again$"):
        Schema.from_json(json.dumps(raw))


def test_how_negatives_were_drawn_is_read_off_the_command_of_older_data(prepared: Path) -> None:
    raw = json.loads((prepared / "schema.json").read_text())
    assert raw.pop("negatives") == "uniform"
    assert Schema.from_json(json.dumps(raw)) == Schema.load(prepared)
    raw["command"] += " --negative-distribution popularity"
    assert Schema.from_json(json.dumps(raw)).negatives == "popularity"
    raw["report"] = {}
    assert Schema.from_json(json.dumps(raw)).negatives is None
