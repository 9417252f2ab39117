"""A run whose second expert is idle, its report, and a small comparison. Read only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from recsys_moe.lab.compare.columns import Column
from recsys_moe.lab.compare.results import Group, Results, Row, RunRecord, TTest
from recsys_moe.lab.compare.significance import spread
from recsys_moe.lab.report.build import build_report
from recsys_moe.lab.report.plots import Image
from recsys_moe.lab.report.run import Options
from tests.serve.conftest import sealed

HOSTILE = "<script>document.title = 'broken'</script>"
IDLE = 1


def silent(title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda rows: None)


def report(path: Path, out: Path, overwrite: bool = False, **options: Any) -> Path:
    build_report(path, out, Options(**options), overwrite=overwrite, progress=silent)
    return out


@pytest.fixture(scope="session")
def lame(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `run` in which no example wants expert 1, and half of the genres are markup."""
    folder = tmp_path_factory.mktemp("lame") / "lame <run>"
    # Other tests may have evaluated the shared run on test.
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("test.json"))
    model = folder / "model"
    weights = load_file(model / "weights.safetensors")
    gates = [name for name in weights if name.startswith("moe.routers.") and name.endswith("bias")]
    assert len(gates) == 2  # one gate per task
    for name in gates:
        weights[name][IDLE] = -100.0
    save_file(weights, model / "weights.safetensors")
    items = pq.read_table(model / "items.parquet")
    genres = pa.array([f"{HOSTILE}|plain" if row % 2 else "plain" for row in range(len(items))])
    place = items.column_names.index("genres")
    pq.write_table(items.set_column(place, "genres", genres), model / "items.parquet")
    for file in ("weights.safetensors", "items.parquet"):
        sealed(model, file)
    return folder


@pytest.fixture(scope="session")
def lame_report(lame: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(lame, tmp_path_factory.mktemp("reports") / "lame")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is what takes time; what is drawn has tests of its own."""
    image = Image(b"<svg></svg>", b"", "<svg></svg>")
    monkeypatch.setattr("recsys_moe.lab.report.build.render", lambda *args: image)


LOSSES = {"topk": [0.40, 0.42], "softmax": [0.39], "moe<b>sart</b>": [0.30, 0.32]}
COSTS = {"topk": 2.0, "softmax": 4.0, "moe<b>sart</b>": 3.0}


def example_results() -> Results:
    """Three routers: two runs, one run, two runs; topk's second run has an idle expert."""
    columns = [
        Column("loss", "loss", "lower", 4),
        Column("experts_inference", "experts, inference", None, 2),
    ]
    loads = {"topk": [[0.25] * 4, [0.5, 0.3, 0.19, 0.01]]}
    runs = [
        RunRecord(
            contender=name,
            seed=seed,
            run=f"runs/{number}-seed{seed}",
            log="",
            best_epoch=2,
            epochs=2,
            values={"loss": loss, "experts_inference": COSTS[name]},
            details={"routing": {"watch": {"load": loads.get(name, [[0.25] * 4] * 2)[seed]}}},
        )
        for number, (name, losses) in enumerate(LOSSES.items())
        for seed, loss in enumerate(losses)
    ]
    rows = [
        Row(
            contender=name,
            router=name,
            experts="dense" if name == "softmax" else "2",
            k_sparse=name != "softmax",
            runs=len(losses),
            cells={"loss": spread(losses), "experts_inference": spread([COSTS[name]])},
            bold=("loss",) if name.startswith("moe") else (),
        )
        for name, losses in LOSSES.items()
    ]
    test = TTest("loss", "moe<b>sart</b>", "topk", True, 0.01, 0.01, 0.02, 0.02)
    group = Group({"watch": 1.0}, rows, [test])
    return Results("mine", "time", "test", (0, 1), columns, [group], runs, ["softmax-seed1"])


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `example_results`; a run's losses are 1 and then the one it ended with."""
    folder, results = tmp_path_factory.mktemp("compared") / "cmp", example_results()
    for run in results.runs:
        (folder / run.run).mkdir(parents=True)
        lines = ["epoch,step,train/loss,val/loss", "1,5,1.5,1.0", f"2,10,1.2,{run.values['loss']}"]
        (folder / run.run / "metrics.csv").write_text("\n".join(lines) + "\n")
    (folder / "plan.json").write_text("{}")
    (folder / "results.json").write_text(json.dumps({**asdict(results), "notes": []}))
    return folder
