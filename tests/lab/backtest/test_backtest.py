"""backtest: each period is predicted by the model of the rows before it; no run is made twice."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data_prep.cut import PreparedLog
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError, Interrupted
from recsys_moe.lab.backtest.plan import BacktestRequest, make_plan, period_starts
from recsys_moe.lab.backtest.results import summary
from recsys_moe.lab.backtest.run import Cut, backtest
from recsys_moe.schema import Schema
from tests.conftest import TINY_MODEL, Command, tells
from tests.lab.backtest.drift import MINUTE, TURN, drifting
from tests.lab.in_process import InProcess

SETTINGS = {
    "model": {**TINY_MODEL, "num_experts": 2},
    "optim": {"lr": 0.03},
    "trainer": {"max_epochs": 4, "batch_size": 64, "logger": "csv"},
}
ASKED = BacktestRequest(
    config=parse_config(SETTINGS), start=str(TURN * MINUTE), periods=3, continue_epochs=3
)


def opened(folder: Path) -> Cut:
    return PreparedLog(folder).cut


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drifting(tmp_path_factory.mktemp("drift") / "data")


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished backtest. Read only."""
    out = tmp_path_factory.mktemp("backtest") / "out"
    assert backtest(ASKED, data, out, opened, executor=InProcess()).failures == []
    return out


def read_rows(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "periods.csv").read_text().splitlines()))


def test_a_model_that_learns_the_turn_predicts_better_than_one_that_does_not(done: Path) -> None:
    rows = read_rows(done)
    metric = {
        name: {(r["update"], r["period"]): float(r[f"click.{name}"]) for r in rows}
        for name in ("auc", "normalised_entropy")
    }
    auc, entropy = metric.values()
    assert len(auc) == 3 * 3
    assert auc["none", "1"] == auc["continue", "1"] == auc["retrain", "1"] < 0.4  # turned round
    assert auc["none", "3"] < 0.4
    assert auc["retrain", "3"] > 0.6 and entropy["retrain", "3"] < entropy["none", "3"] - 0.5
    assert auc["continue", "3"] > auc["none", "3"] + 0.1
    assert entropy["continue", "3"] < entropy["none", "3"] - 0.5
    summary = {s["update"]: s for s in json.loads((done / "results.json").read_text())["summary"]}
    mean = (entropy["retrain", "2"] * 214 + entropy["retrain", "3"] * 213) / 427
    assert summary["retrain"]["tasks"]["click"]["normalised_entropy"] == pytest.approx(mean)


def test_each_period_is_predicted_by_the_rows_before_it(done: Path) -> None:
    rows = [row for row in read_rows(done) if row["update"] == "retrain"]
    for number, row in enumerate(rows, 1):
        schema = Schema.load(done / "data" / f"{number:03d}")
        before = int(row["first"]) // MINUTE  # one row a minute
        assert schema.rows["train"] + schema.rows["val"] == before
        assert int(row["last"]) // MINUTE == before + int(row["rows"]) - 1
    assert [int(row["first"]) for row in rows][0] == TURN * MINUTE
    lock = json.loads((done / "runs" / "continue-003" / "data.lock.json").read_text())
    assert lock["from"]["folder"] == str((done / "runs/continue-002/model").resolve())
    assert (done / "periods.svg").read_bytes().startswith(b"<?xml")


def test_none_is_one_evaluation_of_the_first_model(data: Path, tmp_path: Path, done: Path) -> None:
    request = replace(ASKED, updates=["none"])
    results = backtest(request, data, tmp_path / "out", opened, executor=InProcess()).results
    assert [run.name for run in (tmp_path / "out" / "runs").iterdir()] == ["initial"]
    with_all = json.loads((done / "results.json").read_text())["periods"]
    same = [{**one, "seconds": 0} for one in with_all if one["update"] == "none"]
    assert [{**one, "seconds": 0} for one in results["periods"]] == same


@pytest.mark.slow
def test_an_interrupted_backtest_goes_on_without_repeating_a_run(
    data: Path, done: Path, tmp_path: Path
) -> None:
    request, out = replace(ASKED, updates=["continue"], periods=2), tmp_path / "out"
    with pytest.raises(Interrupted, match="1 of 2 models are finished"):
        backtest(request, data, out, opened, executor=InProcess(stops_at="continue"))
    assert [row["period"] for row in read_rows(out)] == ["1"]
    manifest = out / "runs" / "initial" / "model" / "manifest.json"
    before = manifest.stat().st_mtime_ns
    backtest(request, data, out, opened, executor=InProcess())
    assert [row["period"] for row in read_rows(out)] == ["1", "2"]
    assert manifest.stat().st_mtime_ns == before


def test_a_call_for_one_update_keeps_the_rows_of_the_others(
    data: Path, done: Path, tmp_path: Path
) -> None:
    shutil.copytree(done, out := tmp_path / "out")
    request = replace(ASKED, updates=["none"])
    results = backtest(request, data, out, opened, executor=InProcess()).results
    assert results == json.loads((done / "results.json").read_text())
    assert read_rows(out) == read_rows(done) and len(read_rows(out)) == 3 * 3
    assert "retrain" in summary(results, out)


def test_another_plan_in_the_same_folder_is_refused(data: Path, done: Path) -> None:
    with pytest.raises(ConfigError, match=r"--periods .* must stay 3, got 2; choose another --out"):
        backtest(replace(ASKED, periods=2), data, done, opened, executor=InProcess())
    with pytest.raises(ConfigError, match="--continue-epochs .* must stay 3, got 2.*--out$"):
        backtest(replace(ASKED, continue_epochs=2), data, done, opened, executor=InProcess())


TIMES = torch.arange(10) * 86400  # a row a day from 1970-01-01 on


@pytest.mark.parametrize("start", ["0.8", "691200", "1970-01-09", "1970-01-09T00:00+00:00"])
def test_a_start_is_a_share_or_seconds_or_a_date(start: str) -> None:
    assert period_starts(TIMES, start, 2) == [8 * 86400, 9 * 86400]


def test_a_start_may_be_in_milliseconds_as_prepare_reads_them() -> None:
    time_N = TIMES + 1_700_000_000
    assert period_starts(time_N, "1700691200000", 2) == period_starts(time_N, "0.8", 2)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("soon", "--start must be a date ... or a share between 0 and 1 such as 0.8, got 'soon'"),
        ("1.5", "--start must be a date ... got '1.5'"),
        ("", "--start must be a date ... got ''"),
        ("nan", "--start must be a date ... got 'nan'"),
        ("0", "1970-01-01T00:00:00 to 1970-01-10T00:00:00, got 0; choose"),
        ("1971-01-01", "--start must lie after the first row ... got 1971-01-01; choose"),
    ],
)
def test_a_start_without_rows_before_and_after_it_is_refused(start: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        period_starts(TIMES, start, 2)
    assert tells(str(error.value), said)


def test_wrong_options_and_data_without_times_are_refused(
    data: Path, prepared: Path, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    said = command.fails(3, "backtest", "--data", prepared, "--out", out)
    assert tells(said, "backtest needs ... the time of every row, got ... prepare the data with")
    asked = ("backtest", "--data", data, "--out", out)
    assert "--update must be of none, continue, retrain, got 'often'" in command.fails(
        2, *asked, "--update", "often"
    )
    assert "--periods must be in 1..1000, got 0" in command.fails(2, *asked, "--periods", 0)
    assert "--continue-epochs must be" in command.fails(2, *asked, "--continue-epochs", 0)
    assert not out.exists()


def test_the_plan_names_the_first_second_of_each_period(data: Path) -> None:
    plan = make_plan(ASKED, data)
    assert plan.starts == [160 * MINUTE, 373 * MINUTE, 587 * MINUTE]


@pytest.mark.slow
def test_the_command_prints_a_table_of_periods_and_json(
    data: Path, tmp_path: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (config := tmp_path / "config.yaml").write_text(json.dumps(SETTINGS))
    asked = ["--data", data, "--config", config, "--start", "0.6", "--periods", 2]
    asked += ["--max-epochs", 1, "--out", tmp_path / "out", "--update", "none,continue"]
    start = [sys.executable, "-m", "recsys_moe", "backtest", *map(str, asked)]
    first = subprocess.run(start, capture_output=True, text=True, timeout=300)
    assert first.returncode == 0, first.stderr
    assert "2 of 2 models: continue-002" in first.stderr
    words = [line.split() for line in first.stdout.splitlines()]
    assert words[0][:6] == ["period", "from", "(UTC)", "update", "minutes", "click"]
    assert [line[0] for line in words[1:7]] == ["1", "1", "2", "2", "mean", "mean"]
    again = command("backtest", *asked, "--json")
    assert again.exit_code == 0 and "backtest" in caplog.text and "models:" not in caplog.text
    results = json.loads(again.out)
    assert len(results["periods"]) == 4
    seconds = {one["update"]: one["seconds"] for one in results["summary"]}
    assert seconds["none"] == 0 <= seconds["continue"]  # rounded: a tiny epoch can be 0
