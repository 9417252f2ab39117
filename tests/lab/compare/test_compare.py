"""compare: what is asked is what runs, once; the tables say what the run folders hold."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe import cli
from recsys_moe.artifact.run_folder import record_run
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError, Interrupted, RunError
from recsys_moe.lab.compare.columns import columns_of
from recsys_moe.lab.compare.request import ComparisonRequest
from recsys_moe.lab.compare.results import TTest, compare_best, is_bold
from recsys_moe.lab.compare.run import Comparison, compare
from recsys_moe.lab.jobs.executor import Executor, Job, Outcome
from recsys_moe.lab.jobs.local_runs import check_jobs
from recsys_moe.machine import cores
from recsys_moe.schema import Schema
from tests.conftest import TINY_MODEL
from tests.lab.in_process import ASKED, TINY, InProcess


def run_compare(
    request: ComparisonRequest, data: Path, out: Path, executor: Executor
) -> Comparison:
    return compare(request, data, out, executor=executor)


@pytest.fixture(scope="module")
def done(comparison: Path) -> Path:
    """A finished comparison of moesart and topk, two seeds. Read only."""
    return comparison


def results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())  # type: ignore[no-any-return]


def written(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


# What runs


def test_every_number_is_that_of_its_run_folder(done: Path) -> None:
    found = results(done)
    assert [run["run"] for run in found["runs"]] == [
        f"runs/{router}-0.9_0.1-seed{seed}" for seed in (0, 1) for router in ("moesart", "topk")
    ]
    for run in found["runs"]:
        folder = done / run["run"]
        test = json.loads((folder / "evaluation" / "test.json").read_text())
        assert run["values"]["loss"] == test["loss"]
        assert run["values"]["watch.auc"] == test["tasks"]["watch"]["auc"]
        assert run["values"]["experts_inference"] == test["experts_per_example"]
        epochs = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
        shares = [float(epoch["train/evaluated_share"]) for epoch in epochs]
        assert run["values"]["experts_training"] == pytest.approx(sum(shares) / 2 * 4)
        assert 2 <= run["values"]["experts_inference"] <= 4  # two tasks of k = 2, of 4 experts
        config = (folder / "config.yaml").read_text()
        assert f"seed: {run['seed']}\n" in config and "weight: 0.9" in config
    row = found["groups"][0]["rows"][0]
    losses = [run["values"]["loss"] for run in found["runs"] if "moesart" in run["run"]]
    assert row["cells"]["loss"]["mean"] == pytest.approx(sum(losses) / 2)
    # of two values the standard error is half their distance: |a - b| / sqrt(2) / sqrt(2)
    expected = abs(losses[0] - losses[1]) / 2
    assert row["cells"]["loss"]["standard_error"] == pytest.approx(expected)


def test_parameters_are_those_of_the_model(done: Path, prepared: Path) -> None:
    schema = Schema.load(prepared)
    tables = 8 * (schema.user.size + 1 + schema.item.size + 1)  # one row more for unseen ids
    experts, routers = 4 * (16 * 16 + 16), 2 * (16 * 4 + 4)
    towers = 2 * (16 * 8 + 8 + 8 * 1 + 1)
    for run in results(done)["runs"]:
        assert run["values"]["parameters"] == tables + experts + routers + towers


def test_a_finished_comparison_starts_nothing_and_touches_no_run(
    done: Path, prepared: Path
) -> None:
    before, table = written(done / "runs"), (done / "table.md").read_text()
    run_compare(ASKED, prepared, done, InProcess(fails="-"))  # would fail if it had to run
    assert written(done / "runs") == before
    assert (done / "table.md").read_text() == table


@pytest.mark.slow
def test_more_seeds_and_routers_are_added_to_what_is_there(prepared: Path, tmp_path: Path) -> None:
    short = {**TINY, "trainer": {"max_epochs": 1, "batch_size": 64}}
    one = replace(ASKED, routers=["topk"], seeds=[0], typed=short)
    run_compare(one, prepared, tmp_path / "out", InProcess())
    before = written(tmp_path / "out" / "runs" / "topk-0.9_0.1-seed0")
    more = replace(one, routers=["softmax", "thor", "shared_bottom"], seeds=[1])
    run_compare(more, prepared, tmp_path / "out", InProcess())
    assert written(tmp_path / "out" / "runs" / "topk-0.9_0.1-seed0") == before
    found = results(tmp_path / "out")
    assert len(found["runs"]) == 8 and found["missing"] == []
    rows = {row["router"]: row for row in found["groups"][0]["rows"]}
    assert rows["topk"]["k_sparse"] and not rows["softmax"]["k_sparse"]
    assert rows["shared_bottom"]["experts"] == "1 fixed" and not rows["shared_bottom"]["k_sparse"]
    assert rows["softmax"]["cells"]["experts_training"]["mean"] == 4
    # thor: one expert per task, of which there are two, in each of two passes
    assert 2 < rows["thor"]["cells"]["experts_training"]["mean"] <= 4


def test_what_cannot_be_continued_starts_anew(prepared: Path, tmp_path: Path) -> None:
    one = replace(ASKED, routers=["topk"], seeds=[0])
    folder = tmp_path / "out" / "runs" / "topk-0.9_0.1-seed0"
    with pytest.raises(Interrupted):
        run_compare(one, prepared, tmp_path / "out", InProcess(stops_at="topk"))
    (folder / "checkpoints").mkdir(parents=True)
    record_run(folder, parse_config({}), prepared)
    (folder / "checkpoints" / "last.ckpt").write_bytes(b"PK\x03\x04 cut off")
    assert run_compare(one, prepared, tmp_path / "out", InProcess()).failures == []
    assert "--resume" not in (folder / "command.txt").read_text()


@dataclass
class Listener:
    """An executor that only asks which command each job would run next."""

    commands: list[list[str] | None]

    def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
        self.commands.extend(job.steps[0]() for job in jobs)
        yield from ()


@pytest.mark.parametrize("name", ["last.ckpt", "previous.ckpt", "best.ckpt"])
def test_a_run_with_a_whole_checkpoint_is_continued(
    prepared: Path, tmp_path: Path, name: str
) -> None:
    one, heard = replace(ASKED, routers=["topk"]), Listener([])
    checkpoints = tmp_path / "out" / "runs" / "topk-0.9_0.1-seed1" / "checkpoints"
    run_compare(one, prepared, tmp_path / "out", Listener([]))
    checkpoints.mkdir(parents=True)
    torch.save({"epoch": 1}, checkpoints / name)
    run_compare(one, prepared, tmp_path / "out", heard)
    assert [command and command[-2:] == ["--resume", "auto"] for command in heard.commands] == [
        False,
        True,
    ]


def test_a_failed_run_is_named_with_its_log_and_the_others_stand(
    prepared: Path, tmp_path: Path
) -> None:
    one = replace(ASKED, seeds=[0])
    found = run_compare(one, prepared, tmp_path / "out", InProcess(fails="topk"))
    log = tmp_path / "out" / "logs" / "topk-0.9_0.1-seed0.log"
    with pytest.raises(RunError, match=rf"topk-0.9_0.1-seed0 \(exit 3, log {re.escape(str(log))}"):
        found.check()
    assert results(tmp_path / "out")["missing"] == ["topk-0.9_0.1-seed0"]
    assert "Not finished and not counted: topk" in (tmp_path / "out" / "table.md").read_text()
    assert [run["contender"] for run in results(tmp_path / "out")["runs"]] == ["moesart-0.9_0.1"]


def test_an_interruption_says_how_to_go_on(prepared: Path, tmp_path: Path) -> None:
    one = replace(ASKED, seeds=[0])
    with pytest.raises(Interrupted, match="1 of 2 runs are finished.*same command") as caught:
        run_compare(one, prepared, tmp_path / "out", InProcess(stops_at="topk"))
    assert caught.value.exit_code == 130
    assert len(results(tmp_path / "out")["runs"]) == 1


def test_more_processes_than_cores_are_refused() -> None:
    check_jobs(cores())
    with pytest.raises(ConfigError, match=rf"--jobs .*1..{cores()}, .* got {cores() + 1}"):
        check_jobs(cores() + 1)


# Who is best


def test_the_best_mean_is_tested_against_the_next_and_corrected_for_all(prepared: Path) -> None:
    loss, auc = columns_of(Schema.load(prepared))[:2]
    values = {
        "worst": {0: 9.0, 1: 9.5},
        "next": {0: 2.0, 1: 3.0},
        "best": {0: 1.0, 1: 1.5},
    }
    tests = compare_best(loss, values)
    assert [(t.best, t.other, t.runner_up) for t in tests] == [
        ("best", "next", True),
        ("best", "worst", False),
    ]
    # against "worst" p is smaller, hence doubled; against "next" it stays as it is
    assert tests[0].unpaired_holm == tests[0].unpaired
    assert tests[1].unpaired_holm == pytest.approx(2 * (tests[1].unpaired or 0))
    assert [t.best for t in compare_best(auc, values)] == ["worst", "worst"]


def test_only_the_lead_on_the_next_best_makes_bold() -> None:
    lead = TTest("loss", "a", "b", True, 0.049, 0.2, None, None)
    assert is_bold(lead)
    assert not is_bold(replace(lead, runner_up=False))
    assert not is_bold(replace(lead, unpaired=0.051)) and not is_bold(replace(lead, unpaired=None))


def test_a_pair_needs_the_same_seed(prepared: Path) -> None:
    loss = columns_of(Schema.load(prepared))[0]
    values = {"a": {0: 1.0, 1: 1.2, 2: 1.5}, "b": {1: 2.0, 2: 2.5, 7: 9.0}}
    (test,) = compare_best(loss, values)
    # pairs (1.2, 2.0) and (1.5, 2.5): differences -0.8 and -1.0, mean -0.9, error 0.1, t = -9,
    # and with one degree of freedom P(T < t) = 1/2 + atan(t) / pi
    assert test.paired == pytest.approx(0.5 - 1.4601391 / 3.1415927)
    assert compare_best(loss, {"a": values["a"]}) == []
    assert compare_best(loss, {"a": values["a"], "none": {}}) == []


# Killed half-way, as a user meets it


def command(data: Path, out: Path) -> list[str]:
    flags = ["--routers", "moesart,topk", "--seeds", "1", "--weights", "0.9,0.1", "--jobs", "1"]
    tiny = [f"--set=model={json.dumps(TINY_MODEL)}", "--max-epochs", "2", "--batch-size", "64"]
    base = data.parent / "base.yaml"  # what a file leaves out has fixed defaults, as in `done`
    base.write_text("model: {}\n")
    start = [sys.executable, "-m", "recsys_moe.cli", "compare", "--config", str(base)]
    return [*start, "--data", str(data), "--out", str(out), *flags, *tiny]


@pytest.mark.slow
def test_a_comparison_that_is_killed_loses_and_repeats_no_finished_run(
    prepared: Path, done: Path, tmp_path: Path
) -> None:
    out, env = tmp_path / "out", {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command(prepared, out), stderr=subprocess.PIPE, text=True, env=env) as p:
        assert p.stderr is not None
        next(line for line in p.stderr if line.startswith("1 of 2 runs"))
        p.kill()
    first = out / "runs" / "moesart-0.9_0.1-seed0"
    before = written(first)
    assert (first / "evaluation" / "test.json").is_file() and len(results(out)["runs"]) == 1
    again = subprocess.run(
        [*command(prepared, out), "--json"], capture_output=True, text=True, env=env
    )
    assert again.returncode == 0, again.stderr
    assert written(first) == before
    started = (out / "logs" / f"{first.name}.log").read_text().count("\n$ ") + 1
    assert started == 1  # fit, which evaluates as well
    found = json.loads(again.stdout)
    assert found == results(out) and len(found["runs"]) == 2
    # the same as without the kill, within the rounding of another number of threads
    for run, expected in zip(found["runs"], results(done)["runs"][:2], strict=True):
        assert run["values"]["loss"] == pytest.approx(expected["values"]["loss"], rel=1e-4)
        assert run["values"]["seconds_per_epoch"] >= 0


@pytest.mark.parametrize("name", ["none.yaml", "quickstart"])  # nor is a shipped one meant
def test_a_settings_file_that_is_missing_is_named_by_its_option(
    prepared: Path, tmp_path: Path, name: str
) -> None:
    flags = ["--routers", "topk", "--out", str(tmp_path / "out"), "--settings", name]
    with pytest.raises(ConfigError, match=f"^--settings {name}: no such file"):
        cli.app(["compare", "--data", str(prepared), *flags], standalone_mode=False)


def test_a_router_without_settings_is_named_before_the_first_run(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "best.yaml").write_text("topkk: {model: {router: {name: topk}}}\n")
    flags = ["--routers", "topk", "--weights", "1", "--settings", str(tmp_path / "best.yaml")]
    words = ["compare", "--data", str(prepared), "--out", str(tmp_path / "out"), *flags]
    with caplog.at_level("INFO"), pytest.raises(ConfigError, match="--weights must be numbers"):
        cli.app(words, standalone_mode=False)
    assert "--settings has no section for topk" in caplog.text
