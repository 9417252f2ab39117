"""`recsys-moe finish` makes the model of the best epoch of an interrupted run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recsys_moe.errors import ConfigError, DataError, Interrupted
from recsys_moe.inference.predictor import Predictor
from recsys_moe.train.checkpoints import Checkpoints
from recsys_moe.train.finalize import finish_early
from recsys_moe.train.fit import fit
from tests.conftest import Command
from tests.train.test_resume import STEP, after_signal, config, results

ROOT = Path(__file__).parents[2]


def contents(run: Path) -> dict[str, bytes]:
    files = [*(run / "model").iterdir(), run / "evaluation" / "val.json"]
    return {file.name: file.read_bytes() for file in files}


def interrupted(prepared: Path, out: Path, step: int) -> str:
    """A run of three epochs of 25 steps that is told to stop after `step` of them."""
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Interrupted) as stopped:
        patched.setattr(Checkpoints, STEP, after_signal(getattr(Checkpoints, STEP), step))
        fit(config(), prepared, out)
    return str(stopped.value)


def test_the_best_epoch_so_far_becomes_a_model_and_the_run_may_go_on(
    prepared: Path, tmp_path: Path, command: Command
) -> None:
    """Of a run that stopped in its second epoch: what a run of one epoch has."""
    run = tmp_path / "my run"
    line = interrupted(prepared, run, 40)
    words = shlex.split(line[line.index("recsys-moe finish") :])
    assert words == ["recsys-moe", "finish", str(run)] and not (run / "model").exists()
    done = command(*words[1:], "--json")
    assert done.exit_code == 0, done.err
    once = fit(config(trainer={"max_epochs": 1}), prepared, tmp_path / "once")
    assert {**json.loads(done.out), "ranking": 0} == {**once, "ranking": 0}
    names = ("weights.safetensors", "seen.safetensors", "val.json", "calibration.json")
    for name in names:
        assert contents(run)[name] == contents(tmp_path / "once")[name]
    assert len(Predictor.load(run).recommend(["1"], k=3)[0]) == 3
    fit(config(), prepared, run, resume="auto")
    fit(config(), prepared, tmp_path / "straight")
    assert results(run) == results(tmp_path / "straight")


@pytest.mark.parametrize("kind", ["run", "featured_run"])
def test_of_a_finished_run_it_makes_the_same_bytes(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run = shutil.copytree(request.getfixturevalue(kind), tmp_path / "run")
    before = contents(run)
    shutil.rmtree(run / "model")
    finish_early(run)
    assert contents(run) == before


def test_what_cannot_be_finished_is_named(prepared: Path, run: Path, tmp_path: Path) -> None:
    assert "recsys-moe finish" not in interrupted(prepared, tmp_path / "early", 4)
    with pytest.raises(ConfigError, match="early.*--resume auto"):
        finish_early(tmp_path / "early")
    with pytest.raises(DataError, match=f"{prepared} is not a run folder"):
        finish_early(prepared)
    data = shutil.copytree(prepared, tmp_path / "data")
    with (data / "users.parquet").open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(DataError, match="users.parquet has changed"):
        finish_early(run, data)


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_in_a_command_that_makes_a_model(
    prepared: Path, tmp_path: Path
) -> None:
    """A process of its own, which gets SIGINT once its first epoch has ended."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = [sys.executable, "-m", "recsys_moe.cli"]
    small = ("model.embedding_dim=8", "model.expert_dim=16", "trainer.patience=500")
    sets = [word for setting in small for word in ("--set", setting)]
    words = ["fit", "--data", str(prepared), "--out", str(tmp_path / "run"), *sets]
    words += ["--max-epochs", "500", "--batch-size", "64"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*start, *words], env=env, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "done in" in line)
        next(line for line in process.stderr if line.startswith("epoch 2/"))
        process.send_signal(signal.SIGINT)
        last = process.stderr.read().splitlines()[-1]
    assert process.returncode == 128 + signal.SIGINT
    assert last.startswith("error: interrupted")
    finish = shlex.split(last[last.index("recsys-moe finish") :])[1:]
    made = subprocess.run([*start, *finish, "--evaluate", "test"], env=env, capture_output=True)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "run" / "evaluation" / "test.json").is_file()
    score = subprocess.run([*start, "recommend", finish[-1], "--user", "1"], env=env)
    assert score.returncode == 0
