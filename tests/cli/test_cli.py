"""The installed command, as a user runs it: results, streams, exit codes, nothing half-written.

In a process of its own (`call`) where that is what is tested, otherwise in this one (`command`).
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from recsys_moe.cli import app
from recsys_moe.schema import Schema
from tests.conftest import TINY_MODEL, Command, tells

TINY = ["--set", f"model={json.dumps(TINY_MODEL)}", "--batch-size", "64"]


ROOT = Path(__file__).parents[2]


def words(*args: object) -> list[str]:
    return [sys.executable, "-m", "recsys_moe.cli", *map(str, args)]


def call(*args: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(words(*args), capture_output=True, text=True, env=env, timeout=240)


TRIES = 5
"""Of what is measured beside work that comes and goes."""


def processor_seconds() -> float:
    """Of all processes that were started here and have ended; other work does not add to them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def importing(module: str) -> float:
    """Processor seconds of a process that imports it: a measure of how fast the machine is."""
    before = processor_seconds()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return processor_seconds() - before


@pytest.mark.serial
def test_help_answers_fast() -> None:
    assert "prepare" in call("--help").stdout
    assert any(helping() < max(0.5, 3 * importing("typer.rich_utils")) for _ in range(TRIES))


def helping() -> float:
    """Processor seconds of `--help`."""
    before = processor_seconds()
    assert call("--help").returncode == 0
    return processor_seconds() - before


@pytest.mark.parametrize("module", ["numpy", "pandas", "pyarrow", "torch"])
def test_the_command_line_is_read_without_the_library(module: str) -> None:
    check = f"import sys, recsys_moe.cli.commands; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


@pytest.mark.slow
def test_from_nothing_to_recommendations(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three as processes: what fit tells is what a later process finds."""
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
    behind = [line for line in fitted.stderr.splitlines() if "baseline" in line]
    assert behind and all(line.startswith(("warning: val: ", "warning: test: ")) for line in behind)
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))  # as on a fresh machine
    evaluated = call("evaluate", run, "--json")
    assert "font" not in evaluated.stderr
    result = json.loads(evaluated.stdout)
    assert set(result["tasks"]["watch"]) >= {"auc", "bce", "ece"}
    assert set(result["tasks"]["rating"]) >= {"mse", "rmse", "mae"}
    assert sum(result["routing"]["watch"]["load"]) == pytest.approx(1)
    assert json.loads((run / "evaluation" / "test.json").read_text()) == result
    assert told["test"] == kept == result  # in the process of fit as in one of its own
    user = command("recommend", run, "--user", 1, "--k", 3, "--exclude-seen", "--json")
    assert [item["rank"] for item in json.loads(user.out)["items"]] == [1, 2, 3]
    pairs, scores = tmp_path / "pairs.csv", tmp_path / "scores.csv"
    pairs.write_text("user,item\n1,1\nnobody,1\n")
    scored = command("predict", run / "model", "--input", pairs, "--output", scores, "--json")
    assert json.loads(scored.out) == {"rows": 2, "unseen_user": 1, "unseen_item": 0}


def interrupt_fit(prepared: Path, run: Path, number: signal.Signals) -> tuple[int, str]:
    """Start a long fit, send a signal in its second epoch. Exit code, the rest of its stderr."""
    args = words("fit", "--data", prepared, "--out", run, *TINY, "--max-epochs", 2000)
    with subprocess.Popen(args, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "step 1/" in line)
        next(line for line in process.stderr if line.startswith("epoch 2/"))
        process.send_signal(number)
        rest = process.stderr.read()
        return process.wait(60), rest


def ended(prepared: Path, run: Path, number: signal.Signals, code: int) -> None:
    found, rest = interrupt_fit(prepared, run, number)
    assert found == code and "Traceback" not in rest and "--resume auto" in rest
    assert (run / "checkpoints" / "last.ckpt").is_file()


@pytest.mark.slow
def test_a_termination_ends_fit_with_its_exit_code_and_what_is_saved(
    prepared: Path, tmp_path: Path
) -> None:
    ended(prepared, tmp_path / "run", signal.SIGTERM, 143)


@pytest.mark.slow
@pytest.mark.serial
def test_ctrl_c_ends_fit_with_its_exit_code_and_what_is_saved_at_once(
    prepared: Path, tmp_path: Path
) -> None:
    before = processor_seconds()
    ended(prepared, tmp_path / "run", signal.SIGINT, 130)
    seconds = processor_seconds() - before
    # Nearly all of it before the first progress; half of that is what importing Lightning takes.
    assert seconds < max(10, 2 * importing("lightning.pytorch"))


@pytest.mark.parametrize(
    ("gate", "exit_code"),
    [
        (["--min", "watch.auc=0.01", "--max", "rating.mse=1000"], 0),
        (["--min", "watch.auc=1.01"], 4),
        (["--max", "rating.mse=0"], 4),
    ],
)
def test_quality_gates(run: Path, command: Command, gate: list[str], exit_code: int) -> None:
    done = command("evaluate", run, *gate)
    assert done.exit_code == exit_code
    assert "watch" in done.out  # the evaluation is printed either way
    assert ("error: " in done.err) == (exit_code != 0)


def test_mistakes_are_answered_in_one_line_with_their_exit_code(
    command: Command, run: Path, prepared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new"
    fails = command.fails
    (tmp_path / "broken_router.py").write_text("def (")
    command.monkeypatch.syspath_prepend(tmp_path)
    fit = ["fit", "--data", prepared, "--out", out]
    assert "did you mean 'moesart'" in fails(2, *fit, "--router", "moesrt")
    assert "cannot be imported: SyntaxError" in fails(2, *fit, "--router", "broken_router:X")
    assert tells(fails(2, *fit, "--set", "model.router.kk=1"), "'kk' ... 'k'")
    assert "1..model.num_experts=4, got 5" in fails(2, *fit, "--k", 5, "--experts", 4)
    assert tells(fails(2, *fit, "--k", 1), "k ... 2 ... got 1")
    assert "exists; choose another folder" in fails(2, "fit", "--data", prepared, "--out", run)
    assert "there is no checkpoint" in fails(2, *fit, "--resume", tmp_path / "last.ckpt")
    assert "is not prepared data" in fails(3, "fit", "--data", tmp_path, "--out", out)
    assert "neither a model folder" in fails(3, "evaluate", tmp_path)
    assert "--split must be one of" in fails(2, "evaluate", run, "--split", "tset")
    assert "unknown metric 'watch.acc'" in fails(2, "evaluate", run, "--min", "watch.acc=1")
    assert "must be a number, got 'nan'" in fails(2, "evaluate", run, "--min", "watch.auc=nan")
    assert not out.exists()


def test_an_empty_split_is_invalid_data(command: Command, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "val")
    message = command.fails(3, "fit", "--data", tmp_path / "data", "--out", tmp_path / "run", *TINY)
    assert "val has no Parquet part" in message and not (tmp_path / "run").exists()


def test_a_data_set_of_ones_own_is_one_module(tmp_path: Path, command: Command) -> None:
    (tmp_path / "mine.py").write_text(
        "from data_prep import table\n"
        "def prepare(source, out, *, seed, force):\n"
        "    return table.prepare(out, input=source, user='u', item='i',\n"
        "                         tasks=['click:binary=c'], seed=seed, force=force)\n"
    )
    rows = "".join(f"u{n % 7},i{n // 7},{n % 2}\n" for n in range(70))
    (tmp_path / "log.csv").write_text("u,i,c\n" + rows)
    command.monkeypatch.syspath_prepend(tmp_path)
    command.monkeypatch.chdir(tmp_path)
    done = command("prepare", "module", "mine", "--source", "log.csv", "--out", "data")
    assert done.exit_code == 0, done.err
    assert sum(Schema.load(tmp_path / "data").rows.values()) == 70


def test_a_module_that_is_not_there_is_named(command: Command, tmp_path: Path) -> None:
    words = ["--source", "x", "--out", tmp_path / "d"]
    for name in ("no_such", "", ".relative"):
        message = command.fails(2, "prepare", "module", name, *words)
        assert f"prepare module {name}: " in message


def test_a_split_to_evaluate_that_is_none_is_refused_before_training(
    command: Command, prepared: Path, tmp_path: Path
) -> None:
    fit = ["fit", "--data", prepared, "--out", tmp_path / "run"]
    line = command.fails(2, *fit, "--evaluate", "tset")
    assert tells(line, "--evaluate ... train, val, test, got 'tset'")
    assert not (tmp_path / "run").exists()


def test_dry_run_prints_sizes_and_writes_nothing(
    prepared: Path, tmp_path: Path, command: Command
) -> None:
    done = command("fit", "--data", prepared, "--out", tmp_path / "run", *TINY, "--dry-run")
    assert json.loads(done.out)["rows"] == Schema.load(prepared).rows["train"]
    assert not (tmp_path / "run").exists()


def test_config_show_prints_what_fit_accepts(tmp_path: Path, command: Command) -> None:
    shown = command("config", "show", "--config", "quickstart", "--router", "topk")
    file = tmp_path / "shown.yaml"
    file.write_text(shown.out)
    again = command("config", "show", "--config", file)
    assert again.out == shown.out and "name: topk" in shown.out
    assert "    # Experts kept per example, 1..num_experts.\n    k: 2\n" in shown.out
    assert json.loads(command("config", "schema").out)["type"] == "object"


def test_routers_and_version_are_listed(command: Command) -> None:
    names = json.loads(command("routers", "--json").out)
    assert {"moesart", "softmax", "topk"} <= set(names)
    assert command("version").out == command("--version").out == "0.1.0\n"


@pytest.mark.parametrize("args", [["version"], ["--help"]], ids=" ".join)
def test_a_reader_that_goes_away_causes_no_traceback(args: list[str]) -> None:
    """It is gone before the first byte, however little the command has to say."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(words(*args), stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_router_from_outside_the_package_trains(
    prepared: Path, tmp_path: Path, command: Command
) -> None:
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
    command.monkeypatch.syspath_prepend(tmp_path)
    fit = ["fit", "--data", prepared, "--out", tmp_path / "run", *TINY, "--max-epochs", 1]
    done = command(*fit, "--set", "model.router.name=outside:Uniform", "--k", 3)
    assert done.exit_code == 0, done.err
    load = json.loads((tmp_path / "run" / "evaluation" / "val.json").read_text())["routing"]
    assert load["watch"]["load"] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_every_command_and_option_has_help_and_an_example(command: Command) -> None:
    root: Any = typer.main.get_command(app)
    tree = {(name,): one for name, one in root.commands.items() if not one.hidden}
    for group in ("prepare", "config"):
        tree |= {(group, name): one for name, one in tree[group,].commands.items()}
    for words, one in tree.items():
        options = [option for option in one.params if not getattr(option, "hidden", False)]
        assert one.help and all(option.help for option in options), words
        if len(words) == 1 and options:
            assert one.epilog.startswith(f"Example: recsys-moe {words[0]} "), words
    shown = command("fit", "--help").out
    assert "Usage: recsys-moe fit" in shown and "Example: recsys-moe fit --data" in shown
