"""Every benchmark runs, on sizes that measure nothing, and ends with one JSON object."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.config.settings import parse_config
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL, tells

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TINY = {
    "step": ["--rounds=2", "--experts=2", "--squares", "16"],
    "experts": ["--rounds=2", "--experts", "2", "4", "--k", "1", "2", "--most=2"],
    "loop": ["--rounds=2", "--block=2", "--batch-size=32", "--data={data}"],
    "validation": ["--rounds=2", "--rows=300"],
    "epoch_minutes": [
        *["--rounds=2", "--steps=2", "--warm-up=1", "--validate=30", "--data={data}"],
        *["--routers=softmax,topk,soft_topk", "--config=quickstart"],
    ],
    "cnn_experts": ["--rounds=2", "--rows=8", "--k", "2", "4"],
    "scoring": ["{run}", "--rounds=1", "--pairs=200", "--users=5"],
    "preparing": ["--rows=300"],
    "row_errors": ["{run}", "--rounds=3", "--split=val"],
    "gpu": ["--rounds=2", "--batch-size=32", "--device=cpu", "--ways", "sparse", "dense"],
}

NOT_IN_MAKE = {
    *("run_all", "serving", "soak", "streaming", "slow_start", "continued", "cold_start"),
    *("plain_factors", "epoch_minutes", "results_table", "waits", "overload", "connections"),
    *("row_errors", "draws", "new_items"),
}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import each other by short names, which must not stay behind."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")
    yield
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


def result(script: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    importlib.import_module(script).main(words)
    return dict(json.loads(capsys.readouterr().out.strip().rpartition("\n")[2]))


@pytest.mark.slow
@pytest.mark.parametrize("script", TINY)
def test_a_benchmark_ends_with_its_results_and_where_they_were_measured(
    script: str, prepared: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(data=prepared, run=run) for word in TINY[script]]
    found = result(script, words, capsys)
    assert found["benchmark"] == script
    assert {"date", "commit", "torch", "cpu", "threads", "load_average", "targets"} < set(found)
    for target in found["targets"]:
        least, most = target.get("least", -math.inf), target.get("most", math.inf)
        assert target["met"] == (least <= target["value"] <= most), target


def test_without_a_gpu_its_benchmark_says_so_and_ends_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "sees no CUDA device" in result("gpu", [], capsys)["skipped"]


def test_memory_stages_are_peaks_so_they_never_fall(prepared: Path, tmp_path: Path) -> None:
    memory = importlib.import_module("memory")
    if not Path("/proc/self/status").is_file():
        pytest.skip("the peak is read from /proc/self/status, which only Linux has")
    stages = memory.measure(prepared, tmp_path / "run", 1)
    peaks = [stages[stage] for stage in memory.STAGES]
    # proc(5): the kernel counts per thread and adds up late, so by less than a megabyte they may.
    assert all(later > earlier - 1 for earlier, later in itertools.pairwise(peaks))
    assert peaks[0] > 100  # MB; torch alone takes more


def test_errors_of_rows_are_those_of_means_over_users_and_the_figures_those_of_evaluate(
    run: Path, prepared: Path
) -> None:
    row_errors = importlib.import_module("row_errors")
    users, tasks = row_errors.scored(run, prepared, "test")
    found = row_errors.figures(tasks, np.ones(len(users)))
    judged = evaluate_artifact(run, "test", prepared)
    watch, rating = judged["tasks"]["watch"], judged["tasks"]["rating"]
    expected = [judged["loss"], watch["bce"], watch["auc"], rating["mse"]]
    assert list(found.values()) == pytest.approx(expected, abs=1e-6)
    # Four users with two rows each, whose squared errors are 0, 1, 4 and 9: their mean has a
    # standard error of sqrt((3.5**2 + 2.5**2 + 0.5**2 + 5.5**2) / 4 / 4) = 1.75, and twice as many
    # rows do not make it smaller. 4,000 draws know it to 1.75 / sqrt(8000) = 0.02.
    error = torch.tensor([0.0, 1, 2, 3]).repeat(2)
    task = row_errors.Task("rating", "regression", 1.0, error, torch.zeros(8))
    errors = row_errors.standard_errors(np.arange(8) % 4, [task], 4_000)
    assert errors["loss"] == pytest.approx(1.75, abs=4 * 0.02)


def test_a_draw_stands_as_far_from_the_others_as_draws_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means over seeds of 1, and of 2, 3 and 4: s = 1, and 1 is off 3 by 2 / sqrt(1 + 1/3), the
    root of 3. Student's t with 2 degrees of freedom: p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(3/5)."""
    files = []
    for draw, losses in enumerate([(0.5, 1.5), (2,), (3, 3, 3), (4,)]):
        files.append(tmp_path / f"{draw}.csv")
        files[-1].write_text("\n".join(["seed,loss", *(f"0,{loss}" for loss in losses)]))
    found = result("draws", list(map(str, files)), capsys)
    assert found["draws"] == 4
    (row,) = found["rows"]
    assert row.pop("figure") == "loss"
    assert row == pytest.approx(
        {"chosen": 1, "others": 3, "s": 1, "errors": 3**0.5, "p": 1 - 0.6**0.5}
    )


def test_flops_of_a_step_are_those_of_its_matmuls() -> None:
    step, shape = importlib.import_module("step"), importlib.import_module("shape")
    model = shape.build_model(num_experts=2)
    # Multiply-adds per row: 2 gates 256 x 2, 2 towers 256 x 256 + 256 x 1; per pair: 256 x 256.
    per_row, per_pair = 2 * 256 * 2 + 2 * (256 * 256 + 256), 256 * 256
    # Two FLOPs each; the backward pass has two matmuls for each of the forward pass.
    assert step.step_flops(model, rows=10, pairs=15) == 3 * 2 * (10 * per_row + 15 * per_pair)


def test_the_floor_of_few_rows_has_the_matmuls_of_experts_as_timed() -> None:
    step = importlib.import_module("step")
    times = {"sgemm 10": [4.0], "copy": [1.0], "forward": [2.0], "backward": [3.0]}
    times |= {"optimizer": [1.0], **{name: [5.0] for name in step.EXPERTS}}
    step.add_floors(times, best=10, flops=3000, of_experts=1000)
    # 4 ms for 2 * 10**3 FLOP: 6 ms for all, 4 for those of others, and 3 * 5 for those of experts.
    assert times["floor"] == [6.0 + 1]
    assert times["floor of few rows"] == [15.0 + 4 + 1]


def test_make_bench_runs_every_benchmark_but_those_that_take_long_or_a_comparison() -> None:
    scripts = importlib.import_module("run_all").SCRIPTS
    text = {path.stem: path.read_text(encoding="utf-8") for path in BENCHMARKS.glob("*.py")}
    runnable = {name for name, code in text.items() if "__main__" in code}
    assert set(scripts) == runnable - NOT_IN_MAKE


def test_a_settled_call_is_made_once_untimed_before_each_timed_one() -> None:
    common = importlib.import_module("common")
    made: list[str] = []
    calls = {name: lambda name=name: made.append(name) for name in "ab"}
    times = common.in_turn(calls, 2, warm_up=0, settle=True)
    assert "".join(made) == "aabbaabb" and {len(values) for values in times.values()} == {2}


class Slow:
    """A contestant whose step takes 0.1 s and whose validation of a quarter of the rows takes 2."""

    steps_per_epoch, val, val_share = 30, "rows", 0.25

    def __init__(self, made: list[str], name: str) -> None:
        self.made, self.name, self.time = made, name, 0.0

    def train(self, steps: int) -> None:
        self.made.append(f"{self.name}{steps}")
        self.time += 0.1 * steps

    def validate(self) -> None:
        self.made.append(f"{self.name}v")
        self.time += 2


def test_epochs_are_measured_in_turn_forwards_and_backwards_without_the_first_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, common = importlib.import_module("epoch_minutes"), importlib.import_module("common")
    made: list[str] = []
    rivals = {name: Slow(made, name) for name in "ab"}
    monkeypatch.setitem(common.CLOCKS, "wall", lambda: sum(r.time for r in rivals.values()))
    options = argparse.Namespace(rounds=2, steps=10, warm_up=3, clock="wall")
    blocks = script.measure(rivals, options)
    assert made == ["a3", "a10", "av", "b3", "b10", "bv", "b3", "b10", "bv", "a3", "a10", "av"]
    for block in [*blocks["a"], *blocks["b"]]:
        # 30 steps of 0.1 s; 2 s for a quarter of the rows
        assert (block.training, block.validation) == pytest.approx((3, 8))
        assert block.epoch == pytest.approx(11)


def test_the_interval_of_a_median_is_that_of_resampled_rounds() -> None:
    script = importlib.import_module("epoch_minutes")
    assert script.interval([2.0] * 4) == (2, 2, 2)
    # Three or more of five draws are the 9 with 10 x .2^3 x .8^2 + 5 x .2^4 x .8 + .2^5 = 5.8%,
    # so 97.5% of the medians reach up to it; none lies below 1.
    assert script.interval([1.0, 1.0, 9.0, 1.0, 1.0]) == (1, 1, 9)
    assert script.quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2, 4)


def test_a_router_in_turn_trains_as_a_run_does(prepared: Path, tmp_path: Path) -> None:
    """Two epochs; a block ends in the middle of the first."""
    script = importlib.import_module("epoch_minutes")
    trainer = {"max_epochs": 2, "batch_size": 256, "accelerator": "cpu"}
    config = parse_config({"model": TINY_MODEL, "trainer": trainer})
    fit(config, prepared, tmp_path / "run")
    contestant = script.Contestant(config.model_dump(mode="json"), prepared, validate=0)
    contestant.train(3)
    contestant.train(2 * contestant.steps_per_epoch - 3)
    kept = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert contestant.module.global_step == kept["global_step"]
    torch.testing.assert_close(contestant.module.state_dict(), kept["state_dict"])


@pytest.mark.slow
def test_a_catalogue_is_ranked_also_where_no_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_all, shape = importlib.import_module("run_all"), importlib.import_module("shape")
    monkeypatch.setattr(shape, "USERS", 30)
    monkeypatch.setattr(shape, "ITEMS", 40)
    monkeypatch.setattr(run_all, "RATINGS_TO_RANK", 300)
    with pytest.raises(SystemExit) as end:
        run_all.main(["--quick", "--only", "ranking"])
    last = json.loads(capsys.readouterr().out.strip().rpartition("\n")[2])
    assert (end.value.code, last["failed"]) == (0, [])
    assert last["results"]["ranking"]["items"] == 40


def test_rows_are_prepared_and_trained_on_from_disk_and_in_memory(tmp_path: Path) -> None:
    streaming = importlib.import_module("streaming")
    if not Path("/proc/self/status").is_file():
        pytest.skip("the peak is read from /proc/self/status, which only Linux has")
    streaming.make(tmp_path / "raw", 5000)
    rows = [streaming.measure(stage, tmp_path)["rows"] for stage in streaming.STAGES]
    assert rows[0] == 5000 > rows[1] > 0  # all, then those to train on
    assert rows[1:] == [rows[1]] * 3


def test_each_thing_waited_for_is_met_or_not_or_why_it_is_not_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of the peers the one that is beaten by less counts: 7 times is below 8."""
    waits, common = importlib.import_module("waits"), importlib.import_module("common")
    summary = [
        {"contender": name, "experts": 16, "ratio": [ratio, ratio, ratio]}
        for name, ratio in (("rechub", 9.0), ("deepctr", 7.0), ("twin", 2.0))
    ]
    targets = [common.target("predict, pairs/s", 350_000, 300_000, at_least=True)]
    waits.show({"peers": {"batch": 2048, "summary": summary}, "scoring": {"targets": targets}})
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:4] for line in lines}
    found = {what: [cell.strip() for cell in row] for what, row in cells.items()}
    assert found["predict, pairs/s"] == ["350,000", ">= 300,000", "yes"]
    assert found["whole loop over torch-rechub and DeepCTR-Torch, E=16"] == ["7x", ">= 8x", "no"]
    assert found["whole loop over torch-rechub and DeepCTR-Torch, E=64"][2] == "not measured"
    assert found["recommend 100 to all users"][2] == "not measured"
    assert found["16 settings in one process, over compare --jobs 2"][2] == "no"
    waits.show({"peers": {"batch": 2048, "summary": summary[:1]}})  # one peer alone is not both
    assert "| 9x" not in capsys.readouterr().out


def test_minutes_to_a_loss_are_epochs_times_what_an_epoch_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 epochs of 0.5 against 8 of 0.6 are 1 / 4.8 = 0.2083 of the minutes."""
    waits = importlib.import_module("waits")
    lines = ["run,label,weight.watch,epoch,val.loss"]
    lines += [f"a,ours,0.9,{epoch},{loss}" for epoch, loss in ((1, 0.5), (2, 0.4089), (3, 0.3))]
    lines += ["b,ours,0.1,1,0.1"]  # of other task weights
    file = tmp_path / "page.epochs.csv"
    minutes = waits.minutes(waits.Fit("page", "ours", 0.5))
    monkeypatch.setattr(waits, "RESULTS", tmp_path)
    monkeypatch.setattr(waits, "PAPER", waits.Fit("page", "paper", 0.6))
    file.write_text("\n".join(lines))
    assert tells(minutes({}), "page.epochs.csv ... paper ... 0.4089")
    lines += ["c,paper,0.9,7,0.41", "c,paper,0.9,8,0.40"]
    file.write_text("\n".join(lines))
    assert minutes({})["value"] == pytest.approx(0.2083, abs=1e-4)


def test_the_loss_at_the_end_is_the_mean_over_three_seeds_above_that_of_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.41, 0.42 and 0.43 have a mean that is 0.02 above 0.39, 0.40 and 0.41."""
    waits = importlib.import_module("waits")
    lines = ["run,label,weight.watch,loss", *(f"a{x},ours,0.9,{x}" for x in (0.41, 0.42, 0.43))]
    lines += ["b,ours,0.1,7", *(f"c{x},paper,0.9,{x}" for x in (0.39, 0.40))]
    file = tmp_path / "page.runs.csv"
    monkeypatch.setattr(waits, "RESULTS", tmp_path)
    monkeypatch.setattr(waits, "IDS", waits.Fit("page", "ours"))
    monkeypatch.setattr(waits, "PAPER", waits.Fit("page", "paper"))
    file.write_text("\n".join(lines))
    assert waits.final_loss({}) == "page.runs.csv has 2 of 3 seeds of paper"
    file.write_text("\n".join([*lines, "d,paper,0.9,0.41"]))
    found = waits.final_loss({})
    assert (found["value"], found["met"]) == (pytest.approx(0.02), False)


def test_minutes_to_the_auc_of_a_peer_are_those_of_whole_epochs_over_its_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epoch 3 and epoch 1 reach 0.91, the best test AUC of a fit: 2 epochs of (1 + 2) / 2 minutes
    against 12 are 0.25. Trials of the peer do not count."""
    waits = importlib.import_module("waits")
    lines = ["run,label,weight.watch,epoch,val.watch.auc"]
    lines += [f"a,quick,0.9,{epoch},{auc}" for epoch, auc in ((1, 0.8), (2, 0.9), (3, 0.92))]
    lines += ["b,quick,0.9,1,0.91"]
    (tmp_path / "page.epochs.csv").write_text("\n".join(lines))
    peers = ["peer,split,auc", "mmoe,val,0.99", "mmoe,test,0.8", "mmoe,test,0.91", "ple,test,0.95"]
    (tmp_path / "ml-1m-peers.csv").write_text("\n".join(peers))
    taken = ["what,minutes", f"{waits.QUICK_NAME},1", f"{waits.QUICK_NAME},2", "mmoe,12", "ple,5"]
    (tmp_path / waits.MINUTES).write_text("\n".join(taken))
    monkeypatch.setattr(waits, "RESULTS", tmp_path)
    monkeypatch.setattr(waits, "QUICK", waits.Fit("page", "quick"))
    found = waits.minutes_to_mmoe({})
    assert (found["value"], found["met"]) == (pytest.approx(0.25), False)
