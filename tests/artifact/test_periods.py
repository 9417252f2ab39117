"""Metrics by period: rows in the order of time, cut into parts of equal counts."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.artifact.periods import Periods, period_of
from recsys_moe.config.settings import parse_config
from recsys_moe.data.times import UNKNOWN, row_times
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL, Command, tells

LABELS = torch.tensor([[1.0, 5], [0, torch.nan], [1, 4], [0, torch.nan], [1, 2], [0, torch.nan]])
LOGITS = torch.tensor([[2.0, 3], [1, 9], [-1, 4], [0, 3], [0, 1], [0, 9]])


def log_of(path: Path, *, rows: int = 300) -> Path:
    """`rows` rows of 30 users and 17 items, a minute apart."""
    lines = [f"{n % 30},{n * 7 % 17},{n % 2},{1 + n % 5},{60 * n}" for n in range(rows)]
    path.write_text("\n".join(["user,item,watched,stars,time", *lines]))
    return path


def cli(*args: object) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "recsys_moe", *map(str, args)]
    return subprocess.run(asked, capture_output=True, text=True, timeout=120)


def prepare(log: Path, out: Path) -> Path:
    names = ("--user", "user", "--item", "item", "--task", "watch:binary=watched")
    names += ("--task", "rating:regression=stars", "--timestamp", "time", "--protocol", "time")
    done = cli("prepare", "table", "--input", log, *names, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and beside it its `data`."""
    place = tmp_path_factory.mktemp("timed")
    data = prepare(log_of(place / "log.csv"), place / "data")
    trainer = {"max_epochs": 1, "batch_size": 64}
    fit(parse_config({"model": TINY_MODEL, "trainer": trainer}), data, place / "run")
    return place / "run"


def test_periods_have_equal_counts_and_rows_of_one_time_are_together() -> None:
    # in order: 1 2 | 3 3 | 4 9
    assert period_of(torch.tensor([9, 3, 1, 3, 4, 2]), 3).tolist() == [2, 1, 0, 1, 2, 0]
    # 1 | 1 | 1 | 5: the middle of the ones is in the second of four, the first stays empty
    assert period_of(torch.tensor([1, 1, 1, 5]), 4).tolist() == [0, 0, 0, 1]
    assert period_of(torch.tensor([7, UNKNOWN, 5]), 2).tolist() == [1, -1, 0]


@given(st.lists(st.integers(-9, 9) | st.just(UNKNOWN), min_size=1), st.integers(1, 9))
def test_periods_follow_time_and_none_is_empty(times: list[int], count: int) -> None:
    period_N = period_of(torch.tensor(times), count).tolist()
    known = sorted((time, period) for time, period in zip(times, period_N, strict=True))
    found = [period for time, period in known if time != UNKNOWN]
    assert all(period == -1 for time, period in known if time == UNKNOWN)
    assert found == sorted(found)
    assert set(found) == set(range(len(set(found)))) and len(set(found)) <= count
    assert len({*known}) == len({time for time, _ in known})  # one period per time


def test_the_metrics_of_a_period_are_those_of_its_rows(prepared: Path) -> None:
    schema = Schema.load(prepared)
    user, size = torch.tensor([0, 0, 1, 1, 0, 0]), schema.user.size
    periods = Periods(torch.tensor([10, 20, 30, 40, UNKNOWN, 50]), schema, 1)
    for rows in (slice(0, 4), slice(4, 6)):  # in two batches
        periods.update(Request(user[rows], user[rows]), (LOGITS[rows], LABELS[rows]))
    found = periods.report()
    (one,) = found["periods"]
    assert (found["rows_without_time"], one["first"], one["last"], one["rows"]) == (1, 10, 50, 5)
    watch, rating = one["tasks"]["watch"], one["tasks"]["rating"]
    # -log(1 - s(2)) is log(1 + e^2) - 2 for the positive; log(1 + e^x) for the negatives
    losses = [math.log1p(math.e**2) - 2, math.log1p(math.e), math.log1p(math.e)]
    losses += [math.log(2), math.log(2)]
    entropy = -0.4 * math.log(0.4) - 0.6 * math.log(0.6)
    assert watch["normalised_entropy"] == pytest.approx(sum(losses) / 5 / entropy)
    # pairs: 2 above 1, 0, 0 wins; -1 below all loses: 3 of 6
    assert watch["auc"] == 0.5
    # user 0: 2 above 1 and 0: 1, of 3 rows; user 1: -1 below 0: 0, of 2 rows
    assert watch["gauc"] == pytest.approx((3 * 1 + 2 * 0) / 5)
    probabilities = [1 / (1 + math.exp(-x)) for x in (2, 1, -1, 0, 0)]
    assert watch["predicted_over_observed"] == pytest.approx(sum(probabilities) / 2)
    assert rating["mse"] == ((3 - 5) ** 2 + (4 - 4) ** 2) / 2
    assert rating["predicted_over_observed"] == pytest.approx((3 + 4) / (5 + 4))
    assert (watch["rows"], rating["rows"], size) == (5, 2, 60)


def test_what_a_period_leaves_undefined_is_none(prepared: Path) -> None:
    """A period of one class has no entropy; rows of unknown users no AUC of their user."""
    schema = Schema.load(prepared)
    periods = Periods(torch.tensor([1, 1, 2]), schema, 2)
    user = torch.tensor([schema.user.size, schema.user.size, 0])
    labels = torch.tensor([[1.0, torch.nan], [0, torch.nan], [1, -2]])
    periods.update(Request(user, user), (torch.zeros(3, 2), labels))
    first, second = (one["tasks"] for one in periods.report()["periods"])
    assert first["watch"]["normalised_entropy"] == pytest.approx(1)
    assert (first["watch"]["gauc"], second["watch"]["normalised_entropy"]) == (None, None)
    assert first["rating"]["mse"] is None
    assert second["rating"]["predicted_over_observed"] is None  # a label below 0


def test_times_are_read_in_the_order_of_the_rows(timed: Path) -> None:
    data = timed.parent / "data"
    time_N = row_times(data, "test", "--periods")
    assert sorted(time_N.tolist()) == [60 * n for n in range(300 - len(time_N), 300)]
    assert len(time_N) == Schema.load(data).rows["test"]


@pytest.mark.slow
def test_evaluate_reports_periods_that_add_up_to_the_split(timed: Path, tmp_path: Path) -> None:
    plot = tmp_path / "periods.svg"
    done = cli("evaluate", timed, "--periods", 3, "--plot", plot, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    periods = result["periods"]
    assert [one["rows"] for one in periods] == [10, 10, 10]
    assert [one["first"] for one in periods] == [60 * 270, 60 * 280, 60 * 290]
    sizes, errors = zip(
        *((p["tasks"]["rating"]["rows"], p["tasks"]["rating"]["mse"]) for p in periods), strict=True
    )
    mean = sum(n * mse for n, mse in zip(sizes, errors, strict=True)) / sum(sizes)
    assert mean == pytest.approx(result["tasks"]["rating"]["mse"])
    assert plot.read_bytes().startswith(b"<?xml")
    kept = json.loads((timed / "evaluation" / "test.json").read_text())
    assert kept["periods"] == periods


@pytest.mark.slow
def test_evaluate_prints_a_table_per_task_and_the_report_draws_it(
    timed: Path, command: Command, tmp_path: Path
) -> None:
    lines = command("evaluate", timed, "--periods", 2).out.splitlines()
    at = lines.index("watch by period")
    assert lines[at + 1].split()[:5] == ["from", "(UTC)", "rows", "AUC", "BCE"]
    assert lines[at + 2].split()[:3] == ["1970-01-01", "04:30", "15"]  # 270 minutes after 0:00
    assert "rating by period" in lines
    command("evaluate", timed)  # the same model and rows: what was found of them still holds
    assert command("report", timed, "--out", tmp_path / "report").exit_code == 0
    assert "Metrics by period" in (tmp_path / "report" / "report.html").read_text()
    assert (tmp_path / "report" / "figures" / "periods.svg").is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--periods", 0), "--periods must be in 1..1000, got 0"),
        (("--plot", "a.svg"), "--plot needs --periods; pass both"),
        (("--periods", 2, "--plot", "a.txt"), "--plot must end in .svg or .png, got a.txt"),
    ],
)
def test_wrong_options_are_refused(
    timed: Path, command: Command, options: tuple[object, ...], said: str
) -> None:
    assert said in command.fails(2, "evaluate", timed, *options)


def test_data_without_times_are_refused(timed: Path, command: Command, tmp_path: Path) -> None:
    data = Path(shutil.copytree(timed.parent / "data", tmp_path / "data"))
    (part,) = (data / "test").glob("*.parquet")
    table = pq.read_table(part)
    pq.write_table(table.drop_columns(["timestamp"]), part)
    said = command.fails(2, "evaluate", timed, "--data", data, "--periods", 2)
    assert tells(said, "--periods needs rows with a time ... data/test has none ... prepare")
