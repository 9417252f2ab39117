"""What tune refuses, naming it, and what it says of a database that does not answer."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError, DataError, RunError
from recsys_moe.lab.tune.run import tune
from recsys_moe.lab.tune.storage import safe_storage
from recsys_moe.lab.tune.study import Study
from tests.conftest import TINY_MODEL
from tests.lab.tune.tune_pretend import ASKED, Pretend, in_memory, trials


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch)


@pytest.fixture
def unplotted(monkeypatch: pytest.MonkeyPatch) -> None:
    """For studies with a real database: what else takes seconds is left out."""
    monkeypatch.setattr(Study, "plot", lambda self, file: None)


UNTRAINED = {"training_weight": 0.0}


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trials": 0}, "--trials .*got 0"),
        ({"sampler": "grid"}, "--sampler .*got 'grid'"),
        ({"pruner": "median"}, "--pruner .*got 'median'"),
        ({"weights": "0.9"}, "--weights .*got '0.9'"),
        ({"storage": "mysql://u:secret@h/db"}, "must look like sqlite:///FILE or postgresql"),
        ({"storage": "study.db"}, "must look like"),
        ({"space": {"optim.lr": 3}}, "--space optim.lr: .*low: 1e-5"),
        (
            {"config": parse_config({"trainer": {"monitor": "watch/acc"}})},
            "trainer.monitor .*got 'watch/acc'",
        ),
        ({"config": parse_config({"tasks": {"wach": {"weight": 1}}})}, "did you mean 'watch'"),
        (
            {"config": parse_config({"tasks": dict.fromkeys(("watch", "rating"), UNTRAINED)})},
            "a training_weight .*got 0 for watch",
        ),
    ],
)
def test_a_request_that_cannot_run_is_refused_before_anything_is_written(
    prepared: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        tune(replace(ASKED, **change), prepared, tmp_path / "out", executor=Pretend())
    assert "secret" not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampler": "tpe", "pruner": "none"}, "--sampler of .* must stay random"),
        ({"pruner": "asha"}, "--pruner of .* must stay none"),
        ({"weights": "0.1,0.9"}, "tasks.rating.weight .*got 0.9"),
        ({"space": {"optim.lr": {"low": 1e-5, "high": 1}}}, "--space optim.lr of .*'low': 0.0001"),
        ({"space": {"optim.lr": None}}, "optim.lr of"),
        ({"config": parse_config({"model": TINY_MODEL})}, "trainer.batch_size of .* must stay 64"),
        ({"storage": "sqlite:///other.db"}, "--storage of .* must stay study.db"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_a_study_of_something_else_is_not_continued(
    prepared: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    out = tmp_path / "out"
    tune(replace(ASKED, trials=1), prepared, out, executor=Pretend())
    before = (out / "plan.json").read_text()
    with pytest.raises(ConfigError, match=message):
        tune(replace(ASKED, **change), prepared, out, executor=Pretend())
    assert (out / "plan.json").read_text() == before


@pytest.mark.usefixtures("quick")
def test_other_data_and_other_folders_are_refused(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune(replace(ASKED, trials=1), prepared, out, executor=Pretend())
    plan = json.loads((out / "plan.json").read_text())
    plan["files"]["schema.json"] = "0"
    (out / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(DataError, match="has other data: schema.json differs"):
        tune(ASKED, prepared, out, executor=Pretend())
    (out / "plan.json").write_text('{"format_version": 1, "contenders": {}}')
    with pytest.raises(ConfigError, match="is a comparison"):
        tune(ASKED, prepared, out, executor=Pretend())
    (out / "plan.json").write_text("{")
    with pytest.raises(ConfigError, match="plan.json is damaged"):
        tune(ASKED, prepared, out, executor=Pretend())
    (out / "plan.json").unlink()
    with pytest.raises(ConfigError, match="is not a study"):
        tune(ASKED, prepared, out, executor=Pretend())


@pytest.mark.usefixtures("quick")
def test_values_that_do_not_go_together_are_named(prepared: Path, tmp_path: Path) -> None:
    space = {"model.num_experts": {"choices": [2, 4]}, "model.router.k": {"choices": [2, 4]}}
    request = replace(ASKED, space=space, trials=30)
    with pytest.raises(ConfigError, match=r"trial \d+: .*incompatible values"):
        tune(request, prepared, tmp_path / "out", executor=Pretend())


# The database


@pytest.mark.usefixtures("unplotted")
def test_a_database_that_is_lost_or_damaged_is_said(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune(replace(ASKED, trials=1), prepared, out, executor=Pretend())
    whole = (out / "study.db").read_bytes()
    (out / "study.db").unlink()
    with pytest.raises(RunError, match="--storage study.db, .*trials"):
        tune(ASKED, prepared, out, executor=Pretend())
    (out / "study.db").write_bytes(b"no database " * 100)
    with pytest.raises(RunError, match="--storage study.db: .*not a database"):
        tune(ASKED, prepared, out, executor=Pretend())
    (out / "study.db").write_bytes(whole)
    executor = Pretend()
    tune(ASKED, prepared, out, executor=executor)
    assert executor.ran == ["fit 0001", "fit 0002"]


@pytest.mark.usefixtures("unplotted")
def test_two_studies_share_a_database_and_a_folder_can_move(prepared: Path, tmp_path: Path) -> None:
    shared = replace(ASKED, storage=f"sqlite:///{tmp_path / 'common.db'}", trials=2)
    for name in ("a", "b"):
        tune(shared, prepared, tmp_path / name, executor=Pretend())
    assert len(trials(tmp_path / "a")) == len(trials(tmp_path / "b")) == 2
    tune(ASKED, prepared, tmp_path / "c", executor=Pretend())
    (tmp_path / "c").rename(tmp_path / "moved to")
    executor = Pretend()
    tune(ASKED, prepared, tmp_path / "moved to", executor=executor)
    assert executor.ran == []


def test_a_password_is_never_written(prepared: Path) -> None:
    assert safe_storage("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
    assert safe_storage(None) == "study.db"
    url = "postgresql+psycopg://me@host/db?password=hunter2&sslpassword=hunter2&sslmode=require"
    assert safe_storage(url) == "postgresql+psycopg://me@host/db?sslmode=require"
    # the part behind a bare @ would be taken for the host and written with it
    with pytest.raises(ConfigError, match="an @ in a password is written %40") as caught:
        safe_storage("postgresql://me:se@cret@host/db")
    assert "cret" not in str(caught.value)


@pytest.mark.usefixtures("unplotted")
def test_the_database_is_in_the_folder_whatever_its_name(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "lr? 100% {a}#1"
    for _ in range(2):
        tune(replace(ASKED, trials=1), prepared, out, executor=Pretend())
    assert (out / "study.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [out.name] and len(trials(out)) == 1


def test_a_missing_optuna_is_named(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r'pip install "recsys-moe\[tune\]"'):
        tune(ASKED, prepared, tmp_path / "out", executor=Pretend())
