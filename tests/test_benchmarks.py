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

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TINY = {
    "step": ["--rounds=2", "--experts=2", "--squares", "16"],
    "experts": ["--rounds=2", "--experts", "2", "4", "--k", "1", "2", "--most=2"],
    "loop": ["--rounds=2", "--block=2", "--batch-size=32", "--data={data}"],
    "validation": ["--rounds=2", "--rows=300"],
    "scoring": ["{run}", "--rounds=1", "--pairs=200", "--users=5"],
    "preparing": ["--rows=300"],
    "gpu": ["--rounds=2", "--batch-size=32", "--device=cpu", "--ways", "sparse", "static"],
    "gpu_loop": ["--rounds=2", "--block=2", "--ratings=18200", "--batch-size=512", "--device=cpu"],
    "launches": ["--experts", "4", "--batch-size=32"],
    "trained_steps": ["{run}", "--rounds=2", "--data={data}"],
}

NOT_IN_MAKE = {
    *("launches", "retrieval", "run_all", "scale"),
    *("serving", "serving_events", "soak", "streaming", "trained_steps"),
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
    for script in ("gpu", "gpu_loop"):
        assert "sees no CUDA device" in result(script, [], capsys)["skipped"]


def test_memory_stages_are_peaks_so_they_never_fall(prepared: Path, tmp_path: Path) -> None:
    memory = importlib.import_module("memory")
    if not Path("/proc/self/status").is_file():
        pytest.skip("the peak is read from /proc/self/status, which only Linux has")
    stages = memory.measure(prepared, tmp_path / "run", 1)
    peaks = [stages[stage] for stage in memory.STAGES]
    # proc(5): the kernel counts per thread and adds up late, so by less than a megabyte they may.
    assert all(later > earlier - 1 for earlier, later in itertools.pairwise(peaks))
    assert peaks[0] > 100  # MB; torch alone takes more


def test_a_trained_step_leaves_the_weights_of_its_run(prepared: Path, run: Path) -> None:
    step = importlib.import_module("trained_steps").TrainedStep(run, prepared)
    before = {name: weight.clone() for name, weight in step.module.named_parameters()}
    for _ in range(3):
        step()
    for name, weight in step.module.named_parameters():
        assert torch.equal(weight, before[name]), name
    assert any(weight.grad.any() for weight in step.module.parameters() if weight.grad is not None)


def test_flops_of_a_step_are_those_of_its_matmuls() -> None:
    step, shape = importlib.import_module("step"), importlib.import_module("shape")
    model = shape.build_model(num_experts=2)
    # Multiply-adds per row: 2 gates 256 x 2, 2 towers 256 x 256 + 256 x 1; per pair: 256 x 256.
    per_row, per_pair = 2 * 256 * 2 + 2 * (256 * 256 + 256), 256 * 256
    # Two FLOPs each; the backward pass has two matmuls for each of the forward pass.
    assert step.step_flops(model, rows=10, pairs=15) == 3 * 2 * (10 * per_row + 15 * per_pair)


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
    assert rows[0] == 5000 > rows[1] == rows[2] > 0  # all, then those to train on


def test_a_made_up_log_goes_from_raw_rows_to_lists(tmp_path: Path) -> None:
    scale = importlib.import_module("scale")
    if not Path("/proc/self/status").is_file():
        pytest.skip("the peak is read from /proc/self/status, which only Linux has")
    small = ["model.num_experts=2", "model.expert_dim=8", "model.tower_dims=[8]"]
    options = argparse.Namespace(steps=1, set=[*small, "model.router.k=2"])
    found = {
        stage: scale.measure(stage, tmp_path, 5000, options) for stage in scale.STAGES
    }  # each of them needs what those before it left
    assert found["write"]["done"] == 3000 and 1000 < found["prepare"]["done"] < 2 * 50 * 25
    assert (found["fit"]["done"], found["predict"]["done"]) == (2048, 500)
    assert found["exact"]["done"] == scale.EXACT_USERS and found["two-stage"]["done"] > 50
    assert "recall@100 1.0" in found["two-stage"]["notes"]  # all items but one are retrieved
    assert all(row["peak_mb"] > 100 for row in found.values())
