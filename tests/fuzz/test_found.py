"""Regressions that fuzzing found, each with its smallest input."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.files import parse_set
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError, DataError, RunError
from recsys_moe.lab.compare.plan import make_plan, settle
from recsys_moe.lab.compare.request import ComparisonRequest
from recsys_moe.lab.tune import plan as tune
from recsys_moe.lab.tune.study import Study
from recsys_moe.schema import Schema
from recsys_moe.train.resume import read_checkpoint
from tests.conftest import Command, tells
from tests.fuzz.targets import KEPT, sign

RUN, DATA = KEPT / "ids" / "run", KEPT / "ids" / "data"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA, tmp_path / "data"))


def comparison() -> Any:
    return make_plan(ComparisonRequest(routers=("topk",), seeds=(0,)), DATA)


def study() -> Any:
    return tune.make_plan(tune.StudyRequest(config=parse_config({}), trials=1), DATA, "study.db")


WRONG = [
    *((comparison, "contenders", value) for value in ("x", {"a": 1}, None)),
    (comparison, "seeds", 1),
    *(
        (study, key, value)
        for key in ("study", "sampler", "files", "space", "config")
        for value in (1, None, "absent", [])
    ),
]


@pytest.mark.parametrize(("plan", "key", "value"), WRONG)
def test_a_plan_of_other_types_is_damaged(
    tmp_path: Path, plan: Callable[[], Any], key: str, value: object
) -> None:
    begin = settle if plan is comparison else tune.settle
    begin(plan(), tmp_path)
    raw = {**json.loads((tmp_path / "plan.json").read_text()), key: value}
    if value == "absent":
        del raw[key]
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=r"plan\.json is damaged|--sampler"):
        begin(plan(), tmp_path)


@pytest.mark.parametrize(
    "value", ["[" * 100_000, "2001-99-99", "&a [*a, *a]", "!!python/name:os.system", "\x00"]
)
def test_a_set_value_that_yaml_cannot_hold_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set a: .*YAML value|aliases"):
        parse_set(f"a={value}")
    assert parse_set("a=&a [1]\n") == {"a": [1]}


def test_a_set_key_of_endless_sections_is_refused(command: Command) -> None:
    message = command.fails(2, "config", "show", "--set", "a." * 100_000 + "b=1")
    assert len(message) < 400 and "--set" in message


ENTITY = {"name": "user", "column": "u", "size": 9, "id_type": "int64"}


@pytest.mark.parametrize(
    "change",
    [
        *({"user": user} for user in ({**ENTITY, "size": "9"}, {**ENTITY, "size": -1}, [])),
        {"item": {**ENTITY, "name": 1}},
        *({"tasks": tasks} for tasks in ([1], None)),
        *({"rows": rows} for rows in ([], {"train": "1"})),
        *({key: 1} for key in ("labels", "user_features", "weight")),
        *(b"\xff", b"9" * 5000),
    ],
)
def test_a_schema_of_other_types_is_refused_in_one_line(
    data: Path, change: dict[str, object] | bytes
) -> None:
    if isinstance(change, dict):
        raw = {**json.loads((DATA / "schema.json").read_text()), **change}
        change = json.dumps(raw).encode()
    (data / "schema.json").write_bytes(change)
    with pytest.raises(DataError, match=r"schema\.json: .*") as error:
        Schema.load(data)
    assert "\n" not in str(error.value)


def test_a_study_whose_cells_were_changed_ends_in_one_line(tmp_path: Path) -> None:
    """A range that ends before it begins, which optuna refuses with an error of its own."""
    plan = study()
    opened = Study(plan, tmp_path, None)
    opened.ask()
    opened.close()
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.execute(
            "update trial_params set distribution_json = "
            "replace(distribution_json, '\"low\": ', '\"low\": 9')"
        )
    with pytest.raises(RunError, match=r"--storage study.db: .*low <= high") as error:
        Study(plan, tmp_path, None)
    assert "\n" not in str(error.value)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("pickled", "packing"),
    [
        (b"\x80\x02X\x01", zipfile.ZIP_STORED),  # it ends early
        # torch 2.13 looks for this class in its own message by a pattern of quadratic time
        (b"\x80\x02c" + b"x" * (1 << 20) + b"\nname\n.", zipfile.ZIP_STORED),
        # a GiB of zeros takes 800 bytes as bzip2; torch compresses nothing
        (bytes(1 << 20), zipfile.ZIP_BZIP2),
    ],
    ids=["cut off", "a class of a megabyte", "compressed"],
)
def test_a_checkpoint_with_a_broken_pickle_cannot_be_read(
    tmp_path: Path, pickled: bytes, packing: int
) -> None:
    with (
        zipfile.ZipFile(RUN / "checkpoints" / "last.ckpt") as old,
        zipfile.ZipFile(tmp_path / "last.ckpt", "w", packing) as new,
    ):
        for name in old.namelist():
            new.writestr(name, pickled if name.endswith("data.pkl") else old.read(name))
    with pytest.raises(ValueError, match="it is cut off or no checkpoint at all"):
        read_checkpoint(tmp_path / "last.ckpt")


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "users.csv"])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    model = Path(shutil.copytree(RUN / "model", tmp_path / "model"))
    manifest = json.loads((model / "manifest.json").read_text())
    manifest["files"][name] = "0" * 64
    (model / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="names '.*', which is not a file of a model folder"):
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


@pytest.mark.parametrize("value", ["1", "[1]", "{a: 1}", "null", "[genres, '']", "[[]]"])
def test_features_are_names(command: Command, value: str) -> None:
    message = command.fails(2, "config", "show", "--set", f"model.features={value}")
    assert tells(message, "model.features ... none, all ... got")


@pytest.mark.parametrize("name", ["/", ".", ".."])
def test_a_folder_is_not_a_configuration(command: Command, name: str) -> None:
    assert "no such file" in command.fails(2, "config", "show", "--config", name)


@pytest.mark.parametrize("option", ["--users", "--items"])
def test_more_ids_than_an_index_can_tell_are_refused(command: Command, option: str) -> None:
    message = command.fails(2, "prepare", "synthetic", option, 10**18, "--out", "nowhere")
    # int32 ends at 2^31 - 1, and the last index is that of unseen ids
    assert tells(message, f"{option} ... 2147483646, got {10**18}")


def test_a_calibration_of_a_task_that_is_not_there_is_damaged(tmp_path: Path) -> None:
    model = Path(shutil.copytree(RUN / "model", tmp_path / "model"))
    file = model / "calibration.json"
    file.write_text(file.read_text().replace('"watch"', '"watci"'))
    sign(model)
    with pytest.raises(DataError, match=r"must .*got \['watci'\]"):
        load_artifact(model)


def test_a_path_longer_than_the_system_takes_is_a_setting_that_cannot_be_used(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("user,item\n1,2\n")
    files = ("--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv")
    message = command.fails(2, "predict", "9" * 300, *files)
    assert message.startswith(f"error: {'9' * 40}...: ") and "\n" not in message


def _without_labelled(raw: dict[str, Any]) -> None:
    del raw["labels"]["val"]["watch"]["labelled"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["labels"]["train"]["watch"].update(positive=10**9), "impossible counts"),
        (lambda raw: raw["labels"]["train"]["rating"].update(std=10**200), "impossible counts"),
        (lambda raw: raw["tasks"][0].update(weight=10**400), "weight ... finite"),
        (lambda raw: raw.update(tasks=[]), "schema.json: tasks ... got [] ... prepare"),
        (_without_labelled, "labels.val.watch ... 'labelled' ... prepare"),
    ],
)
def test_a_schema_of_impossible_numbers_is_refused(
    command: Command, data: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    raw = json.loads((data / "schema.json").read_text())
    change(raw)
    (data / "schema.json").write_text(json.dumps(raw))
    words = ["--data", data, "--out", data.parent / "run"]
    biases = "labelled" not in message  # which are fitted to the counts
    words += ["--set", f"model.biases={json.dumps(biases)}", *["--dry-run"] * biases]
    assert tells(command.fails(3, "fit", *words), message)
