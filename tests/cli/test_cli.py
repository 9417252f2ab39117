"""The installed command, as a user runs it: results, streams, exit codes, nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recsys_moe.cli import main
from recsys_moe.schema import Schema
from tests.conftest import TINY_MODEL

TINY = ["--set", f"model={json.dumps(TINY_MODEL)}", "--batch-size", "64"]


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "recsys_moe.cli", *map(str, args)]


def call(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "COLUMNS": "200",
        "NO_COLOR": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    return subprocess.run(
        command(*args), capture_output=True, text=True, cwd=cwd, env=env, timeout=240
    )


class Failure:
    """Runs a command that must fail, in this process: importing torch anew takes seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, exit_code: int, *args: object) -> str:
        """The one line on stderr."""
        self.monkeypatch.setattr(sys, "argv", ["recsys-moe", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = self.capsys.readouterr()
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        assert (caught.value.code, out, len(lines)) == (exit_code, "", 1), err
        return lines[0]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Failure:
    return Failure(monkeypatch, capsys)


def test_help_answers_fast_and_loads_no_torch() -> None:
    seconds = []
    for _ in range(3):
        start = time.monotonic()
        result = call("--help")
        seconds.append(time.monotonic() - start)
    assert result.returncode == 0 and "prepare" in result.stdout
    # On a busy machine in proportion: half of it is what importing typer takes.
    assert min(seconds) < 0.5 or min(seconds) < 3 * seconds_to_import("typer")
    check = (
        "import sys, recsys_moe.cli; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


@pytest.mark.parametrize("name", ["prepare", "fit", "evaluate", "predict", "recommend", "config"])
def test_every_command_explains_itself(name: str) -> None:
    result = call(name, "--help")
    assert result.returncode == 0 and "Usage:" in result.stdout


def test_from_nothing_to_recommendations(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    sizes = ["--users", 60, "--items", 40, "--interactions", 1000]
    prepared = call("prepare", "synthetic", "--out", data, *sizes)
    assert prepared.returncode == 0, prepared.stderr
    assert "60 users, 40 items" in prepared.stdout
    asked = ["--max-epochs", 2, "--evaluate", "test", "--json"]
    fitted = call("fit", "--data", data, "--out", run, *TINY, *asked)
    assert fitted.returncode == 0, fitted.stderr
    told = json.loads(fitted.stdout)  # stdout holds the result alone
    assert told["split"] == "val"
    kept = json.loads((run / "evaluation" / "test.json").read_text())
    assert "epoch 1/2" in fitted.stderr and "\r" not in fitted.stderr
    evaluated = call("evaluate", run, "--json")
    result = json.loads(evaluated.stdout)
    assert set(result["tasks"]["watch"]) >= {"auc", "bce", "ece"}
    assert set(result["tasks"]["rating"]) >= {"mse", "rmse", "mae"}
    assert sum(result["routing"]["watch"]["load"]) == pytest.approx(1)
    assert json.loads((run / "evaluation" / "test.json").read_text()) == result
    assert told["test"] == kept == result  # in the process of fit as in one of its own
    user = call("recommend", run, "--user", 1, "--k", 3, "--exclude-seen", "--json")
    assert [item["rank"] for item in json.loads(user.stdout)["items"]] == [1, 2, 3]
    (tmp_path / "pairs.csv").write_text("user,item\n1,1\nnobody,1\n")
    scored = call(
        "predict",
        run / "model",
        "--input",
        tmp_path / "pairs.csv",
        "--output",
        tmp_path / "scores.csv",
        "--json",
    )
    assert json.loads(scored.stdout) == {"rows": 2, "unseen_user": 1, "unseen_item": 0}


def interrupt_fit(prepared: Path, run: Path, number: signal.Signals) -> tuple[int, str, float]:
    """Start a long fit, send a signal in its second epoch. Exit code, the rest of its stderr, and
    the seconds until its first progress."""
    args = command("fit", "--data", prepared, "--out", run, *TINY, "--max-epochs", 2000)
    start = time.monotonic()
    with subprocess.Popen(args, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "step 1/" in line)
        seconds = time.monotonic() - start
        next(line for line in process.stderr if line.startswith("epoch 2/"))
        process.send_signal(number)
        return process.wait(60), process.stderr.read(), seconds


def seconds_to_import(module: str) -> float:
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, timeout=60)
    return time.monotonic() - start


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_fit_with_its_exit_code_and_what_is_saved(
    prepared: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    found, rest, seconds = interrupt_fit(prepared, tmp_path / "run", number)
    assert found == code and "Traceback" not in rest and "--resume auto" in rest
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()
    # The first progress of fit; where importing Lightning alone takes 5 s, in proportion.
    assert seconds < 10 or seconds < 2 * seconds_to_import("lightning")


@pytest.mark.parametrize(
    ("gate", "exit_code"),
    [
        (["--min", "watch.auc=0.01", "--max", "rating.mse=1000"], 0),
        (["--min", "watch.auc=1.01"], 4),
        (["--max", "rating.mse=0"], 4),
    ],
)
def test_quality_gates(run: Path, gate: list[str], exit_code: int) -> None:
    result = call("evaluate", run, *gate)
    assert result.returncode == exit_code
    assert "watch" in result.stdout  # the evaluation is printed either way
    assert exit_code == 0 or "error: " in result.stderr


def test_mistakes_are_answered_in_one_line_with_their_exit_code(
    fails: Failure, run: Path, prepared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new"
    (tmp_path / "broken_router.py").write_text("def (")
    fails.monkeypatch.syspath_prepend(tmp_path)
    fit = ["fit", "--data", prepared, "--out", out]
    assert "did you mean 'moesart'" in fails(2, *fit, "--router", "moesrt")
    assert "cannot be imported: SyntaxError" in fails(2, *fit, "--router", "broken_router:X")
    assert "unknown key 'kk'; did you mean 'k'?" in fails(2, *fit, "--set", "model.router.kk=1")
    assert "1..model.num_experts=4, got 5" in fails(2, *fit, "--k", 5, "--experts", 4)
    assert "at least 2 for moesart, got 1" in fails(2, *fit, "--k", 1)
    assert "exists; choose another folder" in fails(2, "fit", "--data", prepared, "--out", run)
    assert "there is no checkpoint" in fails(2, *fit, "--resume", tmp_path / "last.ckpt")
    assert "is not prepared data" in fails(3, "fit", "--data", tmp_path, "--out", out)
    assert "neither a model folder" in fails(3, "evaluate", tmp_path)
    assert "--split must be one of" in fails(2, "evaluate", run, "--split", "tset")
    assert "unknown metric 'watch.acc'" in fails(2, "evaluate", run, "--min", "watch.acc=1")
    assert not out.exists()


def test_an_empty_split_is_invalid_data(fails: Failure, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "val")
    message = fails(3, "fit", "--data", tmp_path / "data", "--out", tmp_path / "run", *TINY)
    assert "val has no Parquet part" in message and not (tmp_path / "run").exists()


def test_a_data_set_of_ones_own_is_one_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from data_prep import table\n"
        "def prepare(source, out, *, seed, force):\n"
        "    return table.prepare(out, input=source, user='u', item='i',\n"
        "                         tasks=['click:binary=c'], seed=seed, force=force)\n"
    )
    rows = "".join(f"u{n % 7},i{n // 7},{n % 2}\n" for n in range(70))
    (tmp_path / "log.csv").write_text("u,i,c\n" + rows)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    args = command("prepare", "module", "mine", "--source", "log.csv", "--out", "data")
    done = subprocess.run(args, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sum(Schema.load(tmp_path / "data").rows.values()) == 70


def test_a_module_that_is_not_there_is_named(fails: Failure, tmp_path: Path) -> None:
    message = fails(2, "prepare", "module", "no_such", "--source", "x", "--out", tmp_path / "d")
    assert "no_such" in message


def test_a_split_to_evaluate_that_is_none_is_refused_before_training(
    fails: Failure, prepared: Path, tmp_path: Path
) -> None:
    line = fails(2, "fit", "--data", prepared, "--out", tmp_path / "run", "--evaluate", "tset")
    assert "--evaluate must be one of train, val, test, got 'tset'" in line
    assert not (tmp_path / "run").exists()


def test_usage_errors_exit_with_2() -> None:
    for args in (["fit"], ["fitt"], ["fit", "--no-such-flag"], ["prepare", "movielens"]):
        assert call(*args).returncode == 2


def test_dry_run_prints_sizes_and_writes_nothing(prepared: Path, tmp_path: Path) -> None:
    result = call("fit", "--data", prepared, "--out", tmp_path / "run", *TINY, "--dry-run")
    assert json.loads(result.stdout)["rows"] == Schema.load(prepared).rows["train"]
    assert not (tmp_path / "run").exists()


def test_config_show_prints_what_fit_accepts(tmp_path: Path, prepared: Path) -> None:
    shown = call("config", "show", "--config", "quickstart", "--router", "topk")
    file = tmp_path / "shown.yaml"
    file.write_text(shown.stdout)
    again = call("config", "show", "--config", file)
    assert again.stdout == shown.stdout and "name: topk" in shown.stdout
    assert "    # Experts kept per example, 1..num_experts.\n    k: 2\n" in shown.stdout
    assert json.loads(call("config", "schema").stdout)["type"] == "object"


def test_routers_and_version_are_listed() -> None:
    names = json.loads(call("routers", "--json").stdout)
    assert {"moesart", "softmax", "topk"} <= set(names)
    assert call("version").stdout.strip() == "0.1.0"


def test_a_reader_that_goes_away_causes_no_traceback(run: Path) -> None:
    args = " ".join(command("config", "schema"))
    result = subprocess.run(f"{args} | head -n 1", shell=True, capture_output=True, text=True)
    assert "Traceback" not in result.stderr


def test_a_router_from_outside_the_package_trains(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(
        '''
import torch
from recsys_moe.routers import Router, RouterConfig, Routing


class Uniform(Router):
    """Every example visits the first `k` experts with equal weights."""

    class Config(RouterConfig):
        name: str = "outside:Uniform"
        k: int = 2

    summary = "the first k experts"

    def forward(self, x_BD, user_B=None):
        selected_BE = torch.zeros(len(x_BD), self.shape.num_experts, dtype=torch.bool)
        selected_BE[:, : self.config.k] = True
        return Routing(selected_BE / self.config.k, selected_BE)
'''
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    args = ["fit", "--data", prepared, "--out", tmp_path / "run", *TINY, "--max-epochs", 1]
    chosen = ["--set", "model.router.name=outside:Uniform", "--k", 3]
    done = subprocess.run(command(*args, *chosen), env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    load = json.loads((tmp_path / "run" / "evaluation" / "val.json").read_text())["routing"]
    assert load["watch"]["load"] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
