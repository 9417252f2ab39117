"""tune: a trial is a run folder; numbers, best and settings are its own; killed, it goes on."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from recsys_moe import cli
from recsys_moe.config.files import read_config_file
from recsys_moe.lab.compare.plan import make_plan as make_comparison
from recsys_moe.lab.compare.request import ComparisonRequest
from recsys_moe.lab.tune.run import tune
from recsys_moe.machine import cores
from tests.conftest import TINY_MODEL
from tests.lab.compare.test_compare import written
from tests.lab.in_process import InProcess
from tests.lab.tune.tune_pretend import ASKED, Pretend, drawn, trials


@pytest.fixture(scope="module")
def done(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of three trials that really trained. Read only."""
    out = tmp_path_factory.mktemp("tune") / "out"
    request = replace(ASKED, evaluate_test=True)
    assert tune(request, prepared, out, executor=InProcess()).failures == []
    return out


# What a trial is


def test_every_number_is_that_of_its_run_folder(done: Path) -> None:
    rows = list(csv.DictReader((done / "trials.csv").read_text().splitlines()))
    found = trials(done)
    assert [trial["run"] for trial in found] == [f"trials/000{i}" for i in range(3)]
    for trial, row in zip(found, rows, strict=True):
        run = done / trial["run"]
        val, test = (
            json.loads((run / "evaluation" / f"{split}.json").read_text())
            for split in ("val", "test")
        )
        config = yaml.safe_load((run / "config.yaml").read_text())
        assert trial["state"] == row["state"] == "complete"
        assert trial["loss"] == float(row["loss"]) == val["loss"]
        assert trial["best_epoch"] == int(row["best_epoch"]) == val["epoch"]
        assert trial["test"] == test and float(row["test_loss"]) == test["loss"]
        assert config["optim"]["lr"] == trial["params"]["optim.lr"] == float(row["optim.lr"])
        assert config["penalties"]["trimmed_lasso"] == trial["params"]["penalties.trimmed_lasso"]
        weights = {task: config["tasks"][task]["weight"] for task in ("watch", "rating")}
        assert weights == {"watch": 0.9, "rating": 0.1}
        assert 1e-4 <= trial["params"]["optim.lr"] <= 1e-2
        assert trial["given"] == (trial["number"] == 0)
    assert found[0]["params"] == {"optim.lr": 1e-3, "penalties.trimmed_lasso": 0.0}


def test_best_is_the_lowest_validation_loss_and_fit_takes_it(
    done: Path, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = json.loads((done / "trials.json").read_text())
    losses = [trial["loss"] for trial in results["trials"]]
    best = results["trials"][losses.index(min(losses))]
    assert results["best"] == best["number"]
    assert f"loss {min(losses)} at epoch" in (done / "best.yaml").read_text().splitlines()[0]
    trained = yaml.safe_load((done / best["run"] / "config.yaml").read_text())
    assert yaml.safe_load((done / "best.yaml").read_text()) == trained
    flags = ["--data", str(prepared), "--config", str(done / "best.yaml"), "--out", "x"]
    cli.app(["fit", *flags, "--dry-run"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["parameters"] > 0


def test_compare_takes_the_settings(done: Path, prepared: Path) -> None:
    settings = read_config_file(str(done / "settings.yaml"))
    request = ComparisonRequest(routers=["moesart"], seeds=[0], settings=settings)
    (contender,) = make_comparison(request, prepared).contenders.values()
    best = trials(done)[json.loads((done / "trials.json").read_text())["best"]]["params"]
    assert contender.config["optim"]["lr"] == best["optim.lr"]
    assert contender.config["penalties"]["trimmed_lasso"] == best["penalties.trimmed_lasso"]


def test_the_history_of_the_losses_is_drawn(done: Path) -> None:
    assert (done / "history.png").read_bytes().startswith(b"\x89PNG")


def test_a_finished_study_starts_nothing_and_touches_no_run(done: Path, prepared: Path) -> None:
    before, kept = written(done / "trials"), (done / "trials.json").read_text()
    executor = Pretend()
    tune(ASKED, prepared, done, executor=executor)
    assert executor.ran == []
    assert written(done / "trials") == before and (done / "trials.json").read_text() == kept


# Killed half-way, as a user meets it


def command(data: Path, out: Path, jobs: int) -> list[str]:
    flags = ["--router", "moesart", "--trials", "3", "--sampler", "random", "--jobs", str(jobs)]
    tiny = [f"--set=model={json.dumps(TINY_MODEL)}", "--max-epochs", "2", "--batch-size", "64"]
    (base := data.parent / "base.yaml").write_text("{}")  # nothing follows the data
    start = [sys.executable, "-m", "recsys_moe.cli", "tune", "--weights", "0.9,0.1"]
    start += ["--config", str(base)]
    return [*start, "--data", str(data), "--out", str(out), *flags, *tiny]


@pytest.mark.slow
def test_a_study_that_is_killed_loses_and_repeats_no_finished_trial(
    prepared: Path, done: Path, tmp_path: Path
) -> None:
    out, env = tmp_path / "out", {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    start = command(prepared, out, 1)
    with subprocess.Popen(start, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("1 of 3 trials"))
        process.kill()
    before = written(out / "trials" / "0000")
    again = subprocess.run(
        [*command(prepared, out, min(2, cores())), "--json"],
        capture_output=True, text=True, env=env, timeout=240,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert written(out / "trials" / "0000") == before
    assert (out / "logs" / "0000.log").read_text().count("$ ") == 1  # fit, once
    found = json.loads(again.stdout)["trials"]
    assert [trial["state"] for trial in found] == ["complete"] * 3
    # the same as without the kill, within the rounding of another number of threads
    assert drawn(out) == drawn(done)
    for trial, expected in zip(found, trials(done), strict=True):
        assert trial["loss"] == pytest.approx(expected["loss"], rel=1e-4)
