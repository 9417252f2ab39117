"""Training on two devices equals training on one; it stops, fails and goes on as one does.

Processes are real, over gloo on a CPU, and behind `timeout`: a hang is a failure.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe.config.settings import parse_config
from recsys_moe.data.columns import load_columns
from recsys_moe.data.rows import Batch
from recsys_moe.errors import ConfigError
from recsys_moe.model.tasks import Counts
from recsys_moe.routers import ROUTERS
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL
from tests.features import with_features
from tests.forks import on_two
from tests.train.processes.devices_worker import ROUTERS as TOGETHER
from tests.train.processes.stopping_fit import WAITING

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
LIMIT = ["timeout", "-k", "60", "120"]
"""Seconds. Those of -k also run from a signal that `timeout` passes on."""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
SETTINGS: dict[str, Any] = {
    "model": {**TINY_MODEL, "dropout": 0.0, "router": {"name": "softmax"}},
    "trainer": {"batch_size": 64, "patience": 1000},
}


def words(data: Path, out: Path, epochs: int, *more: str) -> list[str]:
    """Of a fit on two devices with the configuration beside `out`, which is SETTINGS."""
    config = out.with_suffix(".yaml")
    config.write_text(parse_config(SETTINGS).to_yaml())
    paths = ["--data", str(data), "--out", str(out), "--config", str(config)]
    return ["fit", *paths, "--max-epochs", str(epochs), "--devices", "2", *more]


def command(data: Path, out: Path, epochs: int, *more: str) -> list[str]:
    """The same, as a process of its own that starts the two."""
    return [*LIMIT, sys.executable, "-m", "recsys_moe.cli", *words(data, out, epochs, *more)]


def fit_alone(data: Path, out: Path, epochs: int, resume: str | None = None) -> dict[str, Any]:
    trainer = {**SETTINGS["trainer"], "max_epochs": epochs}
    return fit(parse_config({**SETTINGS, "trainer": trainer}), data, out, resume=resume)


def close(one: dict[str, Any], other: dict[str, Any], within: float = 1e-6) -> bool:
    """Loss, AUC and MSE agree."""
    first, second = (
        (r["loss"], r["tasks"]["watch"]["auc"], r["tasks"]["rating"]["mse"]) for r in (one, other)
    )
    return first == pytest.approx(second, abs=within)


@pytest.fixture(scope="module")
def two_processes(prepared: Path) -> dict[str, Any]:
    """What tests/train/processes/devices_worker.py found."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    common = {**ENVIRONMENT, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    script = [*LIMIT, sys.executable, str(HERE / "devices_worker.py"), str(prepared)]
    workers = [
        subprocess.Popen(script, stdout=subprocess.PIPE, env={**common, "RANK": str(rank)})
        for rank in range(2)
    ]
    output = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    found: dict[str, Any] = json.loads(output[0])
    return found


@pytest.mark.parametrize("router", TOGETHER)
def test_two_processes_have_the_gradients_of_one(
    two_processes: dict[str, Any], router: str
) -> None:
    """Also where one of them has all labels of a task. expert_choice selects in each part."""
    assert two_processes["routers"][router]["gradients"] < 1e-5


@pytest.mark.parametrize("router", ["loss_free", "relu", "top_p"])
def test_routers_of_two_processes_end_a_step_as_one(
    two_processes: dict[str, Any], router: str
) -> None:
    """To the last bit: what they count are whole numbers."""
    found = two_processes["routers"][router]["settled"]
    assert found["processes"] == [found["alone"]] * 2
    assert all(found["alone"][name] != values for name, values in found["before"].items())


def test_running_means_are_the_same_bits_in_two_processes_and_those_of_one(
    two_processes: dict[str, Any],
) -> None:
    """Sums of floats in another order: equal within rounding."""
    found = two_processes["routers"]["default_moe"]["settled"]
    first, second = (torch.tensor(each["output_means.mean_EH"]) for each in found["processes"])
    assert torch.equal(first, second) and (first != 0).any()
    alone = torch.tensor(found["alone"]["output_means.mean_EH"])
    torch.testing.assert_close(first, alone)


@pytest.mark.parametrize("router", TOGETHER)
def test_two_processes_evaluate_each_row_once_and_find_the_numbers_of_one(
    two_processes: dict[str, Any], router: str
) -> None:
    both, alone = (two_processes["routers"][router][who] for who in ("both", "alone"))
    assert both["rows"] == alone["rows"] == 225
    for task in ("watch", "rating"):
        assert both["tasks"][task] == pytest.approx(alone["tasks"][task], abs=1e-12)
        assert both["routing"][task] == alone["routing"][task]
    assert both["tasks"]["watch"]["auc"] == alone["tasks"]["watch"]["auc"]
    assert both["loss_batchwise"] == pytest.approx(alone["loss_batchwise"], abs=1e-12)


def test_every_process_gets_the_result(two_processes: dict[str, Any]) -> None:
    assert two_processes["different_results"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("window", ["auto", 300])
def test_features_bags_and_resampled_negatives_train_on_two_devices(
    prepared: Path, tmp_path: Path, window: str | int
) -> None:
    """Bag dropout is drawn by each process; without it: test_encoder_devices.py."""
    data = with_features(prepared, tmp_path / "data")
    parts = {"features": "all", "item_bag": "ratings"}
    negatives = {"resample_negatives": True, "popularity_exponent": 0.75, "user_exponent": 0}
    asked = {**SETTINGS, "model": {**SETTINGS["model"], **parts}, "data": negatives}
    (tmp_path / "own.yaml").write_text(parse_config(asked).to_yaml())
    args = words(data, tmp_path / "two", 3, "--json", "--set", f"data.shuffle_buffer={window}")
    args[args.index("--config") + 1] = str(tmp_path / "own.yaml")
    result = on_two(args, tmp_path / "log")
    assert result.returncode == 0, result.stderr
    asked["trainer"] = {**SETTINGS["trainer"], "max_epochs": 3}
    alone = fit(parse_config(asked), data, tmp_path / "one")
    assert close(json.loads(result.stdout), alone, 0.05)


@pytest.mark.slow
def test_fit_on_two_devices_ends_where_fit_on_one_does(prepared: Path, tmp_path: Path) -> None:
    """Without random draws, after 8 epochs of 25 steps: the same batches, 32 + 32 or 64 rows."""
    args = command(prepared, tmp_path / "two", 8, "--json")
    result = subprocess.run(args, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("epoch 8/8 done") == 1  # the first process speaks for both
    alone = fit_alone(prepared, tmp_path / "one", 8)
    assert close(json.loads(result.stdout), alone)
    texts = [(tmp_path / name / "metrics.csv").read_text() for name in ("one", "two")]
    rows = [list(csv.DictReader(text.splitlines())) for text in texts]
    assert [row["step"] for row in rows[1]] == [str(25 * epoch) for epoch in range(1, 9)]
    for one, two in zip(*rows, strict=True):
        for name, value in one.items():
            assert float(two[name]) == pytest.approx(float(value), abs=1e-6), name
    files = [
        {f.relative_to(tmp_path / name).as_posix() for f in (tmp_path / name).rglob("*")}
        for name in ("one", "two")
    ]
    assert {f for f in files[0] ^ files[1] if "tfevents" not in f} == set()
    assert (tmp_path / "two" / "command.txt").read_text().count("\n") == 1


@pytest.mark.slow
def test_a_last_batch_of_fewer_rows_than_devices_is_a_step_as_on_one_device(
    prepared: Path, tmp_path: Path
) -> None:
    """1575 training rows are 1574 + 1: of the second step one process has no row at all."""
    more = ["--batch-size", "1574", "--set", "penalties.z_loss=0.1"]
    result = on_two(words(prepared, tmp_path / "two", 6, "--json", *more), tmp_path / "log")
    assert result.returncode == 0, result.stderr
    trainer = {"batch_size": 1574, "patience": 1000, "max_epochs": 6}
    config = {**SETTINGS, "trainer": trainer, "penalties": {"z_loss": 0.1}}
    assert close(json.loads(result.stdout), fit(parse_config(config), prepared, tmp_path / "one"))
    for name in ("one", "two"):
        rows = list(csv.DictReader((tmp_path / name / "metrics.csv").read_text().splitlines()))
        assert [row["step"] for row in rows] == [str(2 * epoch) for epoch in range(1, 7)]


@pytest.mark.slow
def test_a_signal_stops_both_and_one_device_goes_on_from_there(
    prepared: Path, tmp_path: Path
) -> None:
    """At the step that stopping_fit.py arranges, the 7th of the second epoch."""
    number, out = signal.SIGTERM, tmp_path / "run"
    module = command(prepared, out, 100)
    args = [str(HERE / "stopping_fit.py") if word == "recsys_moe.cli" else word for word in module]
    args.remove("-m")
    with subprocess.Popen(args, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith(WAITING))
        process.send_signal(number)  # `timeout` passes it on
        rest = process.stderr.read()  # to its end: no process is left that could write
    assert process.returncode == 128 + number, rest
    assert rest.count("error:") == 1
    assert "error: interrupted; epoch 2, step 32 is saved in" in rest
    resumed = fit_alone(prepared, out, 2, resume="auto")
    assert close(resumed, fit_alone(prepared, out.with_name("straight"), 2))


@pytest.mark.slow
def test_a_result_that_cannot_be_written_ends_both_in_words(prepared: Path, tmp_path: Path) -> None:
    """Only the first process writes, and both hear why it could not."""
    limited = ["bash", "-c", 'ulimit -f 8; exec "$@"', "limited"]  # of 1,024 bytes
    args = limited + command(prepared, tmp_path / "run", 1)
    result = subprocess.run(args, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 1, result.stderr
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("error: "))
    assert "best.ckpt cannot be written: File too large; make room" in line
    assert sorted(file.name for file in (tmp_path / "run" / "checkpoints").iterdir()) == []


@pytest.mark.slow
def test_torchrun_trains_as_the_command_alone_does(prepared: Path, tmp_path: Path) -> None:
    """It sets the number of processes, which the command must know as well."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    fit_command = command(prepared, tmp_path / "run", 1, "--json")[len(LIMIT) + 1 :]
    args = [*LIMIT, *start, *fit_command]
    result = subprocess.run(args, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert close(json.loads(result.stdout), fit_alone(prepared, tmp_path / "one", 1))


@pytest.mark.slow
def test_an_error_before_the_first_step_ends_both_with_its_exit_code(
    prepared: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    args = command(prepared, tmp_path / "run", 1)
    result = subprocess.run(args, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.count("error: --out") == 1
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_streams_differ_by_rank_and_step_and_repeat(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout and moesart draw at random; the same batch gives another loss on another rank."""
    schema = Schema.load(prepared)
    batch = load_columns(prepared, schema, "train").take(slice(64))
    module = RecModule({"model": TINY_MODEL}, schema.to_json()).train()
    module._steps_per_epoch = 25

    def loss(rank: int) -> float:
        monkeypatch.setattr(RecModule, "global_rank", rank)
        return module.training_step(batch, 1).item()

    first, second, again = loss(0), loss(1), loss(0)
    assert first == again != second


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_a_step_gives_every_parameter_a_gradient(router: str, prepared: Path) -> None:
    """DDP waits forever, or raises, for one that it does not see."""
    schema = Schema.load(prepared)
    batch = load_columns(prepared, schema, "train").take(slice(64))
    model = {**TINY_MODEL, "router": {"name": router}}
    module = RecModule({"model": model}, schema.to_json()).train()
    module._steps_per_epoch = 25
    module.training_step(batch, 1).backward()
    assert [name for name, p in module.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_a_step_without_rows_adds_zero_to_every_gradient(router: str, prepared: Path) -> None:
    """Whatever the penalties: of the last batch other processes have all rows."""
    schema = Schema.load(prepared)
    batch = load_columns(prepared, schema, "train").take(slice(0))
    for name in ("trimmed_lasso", "switch", "importance", "load", "z_loss"):
        sections = {"model": {**TINY_MODEL, "router": {"name": router}}, "penalties": {name: 0.1}}
        try:
            module = RecModule(sections, schema.to_json()).train()
        except ConfigError as error:  # the router has not what the penalty needs
            assert name in str(error)
            continue
        module._steps_per_epoch = 25
        module._counts = lambda *args: Counts(torch.ones(2), torch.ones(()))  # type: ignore
        loss = module.training_step(batch, 1)
        loss.backward()
        assert float(loss.detach()) == 0
        assert [n for n, p in module.named_parameters() if p.grad is None or p.grad.any()] == []


def test_a_process_without_rows_to_evaluate_gets_one_empty_batch(prepared: Path) -> None:
    """225 rows are one batch; without any, Lightning would leave out the validation of rank 1."""
    data = RecDataModule(prepared, parse_config({}))
    sizes = []
    for rank in range(2):
        data.trainer = type("Trainer", (), {"global_rank": rank, "world_size": 2})()
        sizes.append([len(batch.user) for batch in data.val_dataloader()])
        assert all(type(batch) is Batch for batch in data.val_dataloader())
    assert sorted(sizes) == [[0], [225]]
