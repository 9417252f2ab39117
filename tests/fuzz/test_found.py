"""What made-up inputs broke once, each at its smallest."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.files import parse_set
from recsys_moe.config.settings import parse_config
from recsys_moe.data.streaming import open_rows
from recsys_moe.errors import ConfigError, DataError, RunError
from recsys_moe.files import sha256_file
from recsys_moe.lab.compare.plan import ComparisonRequest, make_plan, settle
from recsys_moe.lab.tune import plan as tune
from recsys_moe.lab.tune.study import Study
from recsys_moe.schema import Schema
from recsys_moe.train.resume import read_checkpoint
from tests.conftest import Command
from tests.fuzz.doors import KEPT

RUN, DATA = KEPT / "ids" / "run", KEPT / "ids" / "data"
DEEP = "[" * 100_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA, tmp_path / "data"))


def no_parquet(path: Path) -> None:
    """Between the magic bytes of one stands nothing that a reader understands."""
    path.write_bytes(b"PAR1" + b"\xff" * 20 + (20).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize("broken", [no_parquet, lambda path: path.write_bytes(b"no Parquet")])
@pytest.mark.parametrize("file", ["users.parquet", "items.parquet"])
def test_ids_of_data_that_cannot_be_read_are_named(
    command: Command, data: Path, file: str, broken: object
) -> None:
    broken(data / file)  # type: ignore[operator]
    for words in (["evaluate", RUN, "--data", data], ["doctor", "--data", data]):
        done = command(*words)
        assert done.exit_code == 3
        assert f"{file} cannot be read as Parquet" in done.out + done.err


def test_users_that_cannot_be_read_are_data_that_are_invalid(
    command: Command, tmp_path: Path
) -> None:
    no_parquet(tmp_path / "users.parquet")
    message = command.fails(
        3, "recommend", RUN, "--users", tmp_path / "users.parquet", "--output", tmp_path / "o.csv"
    )
    assert f"--users {tmp_path}/users.parquet cannot be read: " in message


@pytest.mark.parametrize("raw", [{"contenders": "x"}, {"contenders": {"a": 1}}, {"seeds": 1}, None])
def test_a_plan_of_other_types_is_damaged(tmp_path: Path, raw: dict[str, object] | None) -> None:
    plan = make_plan(ComparisonRequest(routers=("topk",), seeds=(0,)), DATA)
    settle(plan, tmp_path)
    file = tmp_path / "plan.json"
    whole = json.loads(file.read_text())
    file.write_text(DEEP if raw is None else json.dumps({**whole, **raw}))
    with pytest.raises(ConfigError, match=r"plan.json is damaged; compare into another folder"):
        settle(plan, tmp_path)


@pytest.mark.parametrize(
    "value", [DEEP, "2001-99-99", "&a [1]\n", "&a [*a, *a]", "!!python/name:os.system", "\x00"]
)
def test_a_set_value_that_yaml_cannot_hold_is_refused(value: str) -> None:
    if value.startswith("&a [1]"):
        assert parse_set(f"a={value}") == {"a": [1]}
        return
    with pytest.raises(ConfigError, match=r"^--set a: .* is not a YAML value|aliases"):
        parse_set(f"a={value}")


def test_a_set_key_of_endless_sections_is_refused(command: Command) -> None:
    message = command.fails(2, "config", "show", "--set", "a." * 100_000 + "b=1")
    assert len(message) < 400 and "--set" in message


@pytest.mark.parametrize(
    "change",
    [
        {"user": {"name": "user", "column": "u", "size": "9", "id_type": "int64"}},
        {"user": {"name": "user", "column": "u", "size": -1, "id_type": "int64"}},
        {"user": []},
        {"tasks": [1]},
        {"tasks": None},
        {"rows": []},
        {"rows": {"train": "1"}},
        {"labels": 3},
        {"user_features": 1},
        {"weight": 1},
        {"item": {"name": 1, "column": "u", "size": 1, "id_type": "int64"}},
    ],
)
def test_a_schema_of_other_types_is_refused_in_one_line(change: dict[str, object]) -> None:
    raw = {**json.loads((DATA / "schema.json").read_text()), **change}
    with pytest.raises(DataError) as error:
        Schema.from_json(json.dumps(raw))
    assert "\n" not in str(error.value) and str(error.value).startswith("schema.json: ")


@pytest.mark.parametrize("content", [DEEP.encode(), b"\xff", b"9" * 5000])
def test_a_schema_that_no_reader_can_read_is_refused(data: Path, content: bytes) -> None:
    (data / "schema.json").write_bytes(content)
    with pytest.raises(DataError, match=r"schema\.json: .*; prepare the data again"):
        Schema.load(data)


@pytest.mark.parametrize("key", ["study", "sampler", "files", "space", "config"])
@pytest.mark.parametrize("value", [1, None, "absent", []])
def test_a_plan_of_a_study_of_other_types_is_damaged(
    tmp_path: Path, key: str, value: object
) -> None:
    plan = tune.make_plan(tune.StudyRequest(config=parse_config({}), trials=1), DATA, "study.db")
    tune.settle(plan, tmp_path)
    raw = json.loads((tmp_path / "plan.json").read_text())
    raw |= {key: value}
    if value == "absent":
        del raw[key]
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=r"plan.json is damaged; tune|--sampler"):
        tune.settle(plan, tmp_path)


def test_a_study_whose_cells_were_changed_ends_in_one_line(tmp_path: Path) -> None:
    """A range that ends before it begins, which optuna refuses with an error of its own."""
    plan = tune.make_plan(tune.StudyRequest(config=parse_config({}), trials=1), DATA, "study.db")
    study = Study(plan, tmp_path, None)
    study.ask()
    study.close()
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.execute(
            "update trial_params set distribution_json = "
            "replace(distribution_json, '\"low\": ', '\"low\": 9')"
        )
    with pytest.raises(RunError, match=r"--storage study.db: `low <= high` must hold") as error:
        Study(plan, tmp_path, None)
    assert "\n" not in str(error.value)


def test_a_column_of_another_type_is_named(command: Command, tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": [[1], [2]], "item": [1, 2]}), tmp_path / "in.parquet")
    words = ["--input", tmp_path / "in.parquet", "--output", tmp_path / "out.csv"]
    assert "'user'" in command.fails(3, "predict", RUN, *words)


@pytest.mark.parametrize("name", ["wh\0o", '"a\nb"'])
def test_a_header_that_two_readers_read_differently_is_refused(
    command: Command, tmp_path: Path, name: str
) -> None:
    (tmp_path / "log.csv").write_text("user,item,x\n1,2,1\n2,3,0\n3,3,1\n")
    (tmp_path / "items.csv").write_text(f"item,{name}\n2,a\n3,b\n")
    words = [
        "--input",
        tmp_path / "log.csv",
        "--user",
        "user",
        "--item",
        "item",
        "--task",
        "x:binary=x",
    ]
    words += ["--items", tmp_path / "items.csv", "--out", tmp_path / "out"]
    assert f"{tmp_path}/items.csv: " in command.fails(3, "prepare", "table", *words)


def test_a_checkpoint_whose_pickle_ends_early_cannot_be_read(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(RUN / "checkpoints" / "last.ckpt") as old,
        zipfile.ZipFile(tmp_path / "last.ckpt", "w") as new,
    ):
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, b"\x80\x02X\x01" if name.endswith("data.pkl") else content)
    with pytest.raises(ValueError, match="cannot be read as a checkpoint of fit: error"):
        read_checkpoint(tmp_path / "last.ckpt")


def test_a_checkpoint_that_is_packed_is_not_unpacked(tmp_path: Path) -> None:
    """A GiB of zeros takes 800 bytes as bzip2, and is unpacked at once; torch packs nothing."""
    with zipfile.ZipFile(tmp_path / "last.ckpt", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    with pytest.raises(ValueError, match="it is cut off or no checkpoint at all"):
        read_checkpoint(tmp_path / "last.ckpt")


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "users.csv"])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    model = Path(shutil.copytree(RUN / "model", tmp_path / "model"))
    manifest = json.loads((model / "manifest.json").read_text())
    manifest["files"][name] = "0" * 64
    (model / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="names '.*', which is no file of a model folder"):
        load_artifact(model)


def test_a_link_to_another_file_is_not_read(tmp_path: Path) -> None:
    """A link to the right bytes is: caches of models are made of them."""
    model = Path(shutil.copytree(RUN / "model", tmp_path / "model"))
    (model / "card.json").rename(tmp_path / "elsewhere")
    (model / "card.json").symlink_to("../elsewhere")
    assert load_artifact(model).card
    (tmp_path / "elsewhere").write_text('{"secret": 1}')
    with pytest.raises(DataError, match="was truncated or edited") as error:
        load_artifact(model)
    assert "secret" not in str(error.value)


def test_a_carriage_return_in_the_first_line_is_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(b"user,item,x\rz,y\n1,2,1,1\n2,3,0,1\n3,3,1,1\n")
    words = ["--input", tmp_path / "log.csv", "--user", "user", "--item", "item"]
    words += ["--task", "y:binary=y", "--out", tmp_path / "out"]
    message = command.fails(3, "prepare", "table", *words)
    assert "log.csv: the names in the first line must be" in message


def test_more_positive_labels_than_labels_are_impossible(command: Command, data: Path) -> None:
    raw = json.loads((data / "schema.json").read_text())
    raw["labels"]["train"]["watch"]["positive"] = 10**9
    (data / "schema.json").write_text(json.dumps(raw))
    words = ["--data", data, "--out", data.parent / "run", "--dry-run"]
    assert "impossible counts" in command.fails(3, "fit", *words)


def test_counts_without_the_labelled_rows_are_refused(command: Command, data: Path) -> None:
    raw = json.loads((data / "schema.json").read_text())
    del raw["labels"]["val"]["watch"]["labelled"]
    (data / "schema.json").write_text(json.dumps(raw))
    words = ["--data", data, "--out", data.parent / "run", "--set", "model.main_effects=false"]
    message = command.fails(3, "fit", *words)
    assert "labels.val.watch must hold 'labelled'; prepare the data again" in message


@pytest.mark.parametrize("value", ["1", "[1]", "{a: 1}", "null", "[genres, '']", "[[]]"])
def test_features_are_names(command: Command, value: str) -> None:
    message = command.fails(2, "config", "show", "--set", f"model.features={value}")
    assert "model.features must be none, all or different names, got" in message


def test_a_name_in_parquet_that_is_no_text_is_named(data: Path) -> None:
    [part] = (data / "test").iterdir()
    content = part.read_bytes()
    part.write_bytes(content.replace(b"user_index", b"user_\xdfndex"))
    with pytest.raises(DataError, match=f"{part} cannot be read as Parquet: 'utf-8' codec can't"):
        open_rows(data, Schema.load(data), "test", 10**6)


@pytest.mark.parametrize("name", ["/", ".", ".."])
def test_folders_without_a_name_are_refused(command: Command, data: Path, name: str) -> None:
    message = command.fails(2, "fit", "--data", data, "--out", name)
    assert f"--out {name} is or holds the current folder; choose another folder" in message
    assert "no such file" in command.fails(2, "config", "show", "--config", name)


@pytest.mark.parametrize("option", ["--users", "--items"])
def test_more_ids_than_an_index_can_tell_are_refused(command: Command, option: str) -> None:
    message = command.fails(2, "prepare", "synthetic", option, 10**18, "--out", "nowhere")
    # int32 ends at 2^31 - 1, and the last index is that of unseen ids
    assert f"{option} must be at most 2147483646, got {10**18}" in message


def test_a_deviation_beyond_all_numbers_is_impossible(command: Command, data: Path) -> None:
    schema = json.loads((data / "schema.json").read_text())
    schema["labels"]["train"]["rating"]["std"] = 10**200
    (data / "schema.json").write_text(json.dumps(schema))
    message = command.fails(3, "fit", "--data", data, "--out", data.parent / "out", "--dry-run")
    assert "labels.train holds impossible counts" in message


def test_a_weight_beyond_all_numbers_is_not_finite(command: Command, data: Path) -> None:
    schema = json.loads((data / "schema.json").read_text())
    schema["tasks"][0]["weight"] = 10**400
    (data / "schema.json").write_text(json.dumps(schema))
    message = command.fails(3, "fit", "--data", data, "--out", data.parent / "out", "--dry-run")
    assert "weight must be finite" in message


def test_a_calibration_of_a_task_that_is_not_there_is_damaged(tmp_path: Path) -> None:
    model = Path(shutil.copytree(RUN / "model", tmp_path / "model"))
    file = model / "calibration.json"
    file.write_text(file.read_text().replace('"watch"', '"watci"'))
    manifest = json.loads((model / "manifest.json").read_text())
    manifest["files"][file.name] = sha256_file(file)
    (model / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"must be among \['watch', 'rating'\], got \['watci'\]"):
        load_artifact(model)


def test_a_path_longer_than_the_system_takes_is_a_setting_that_cannot_be_used(
    command: Command,
) -> None:
    message = command.fails(2, "predict", "9" * 300, "--input", "in.csv", "--output", "out.csv")
    assert message == f"error: {'9' * 40}...: longer than a path can be; name a shorter one"


def test_a_zip_with_a_name_that_is_no_text_is_damaged(command: Command, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ml.zip", "w") as archive:
        archive.writestr("ü.data", "")  # not ASCII, so both of its names are marked as UTF-8
        archive.writestr("ml-100k/u.data", "1\t1\t5\t0\n")
        archive.writestr("ml-100k/u.item", "")
    content = (tmp_path / "ml.zip").read_bytes()
    first = content.index(b"ml-100k/u.data")
    named = content[: first - 24] + b"\x00\x08" + content[first - 22 : first]  # the mark, bit 11
    (tmp_path / "ml.zip").write_bytes(named + b"\x9e" + content[first + 1 :])
    message = command.fails(
        3, "prepare", "movielens", "--variant", "100k", "--source", tmp_path / "ml.zip",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert "ml.zip is not a whole zip file ('utf-8' codec can't decode" in message


def test_pairs_in_parquet_whose_column_is_no_text_are_named(
    command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "pairs.parquet"
    pq.write_table(pa.table({"user": ["1"], "item": ["1"]}), path)
    path.write_bytes(path.read_bytes().replace(b"user", b"\xf2ser"))
    message = command.fails(3, "predict", RUN, "--input", path, "--output", tmp_path / "out.csv")
    assert f"{path} cannot be read: 'utf-8' codec can't decode byte 0xf2" in message


def test_a_schema_without_tasks_is_refused(command: Command, data: Path) -> None:
    schema = json.loads((data / "schema.json").read_text())
    (data / "schema.json").write_text(json.dumps(schema | {"tasks": []}))
    message = command.fails(3, "fit", "--data", data, "--out", data.parent / "out", "--dry-run")
    assert "schema.json: tasks must be at least one, got []; prepare the data again" in message


def test_parquet_with_fewer_rows_than_it_says_is_damaged(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "pairs.parquet"
    pq.write_table(pa.table({"user": ["1"] * 5, "item": ["1"] * 5}), path)
    content = path.read_bytes()
    # In the footer, by Thrift's compact protocol: field 3 of the file (0x16), zigzag(5) = 10, then
    # field 4 (0x19), the list of row groups.
    said = content.index(b"\x16\x0a\x19")
    path.write_bytes(content[:said] + b"\x16\x0c\x19" + content[said + 3 :])  # zigzag(6) = 12
    message = command.fails(3, "predict", RUN, "--input", path, "--output", tmp_path / "out.csv")
    assert "cannot be read: its row groups do not have as many rows as it says" in message
    assert not (tmp_path / "out.csv").exists()
