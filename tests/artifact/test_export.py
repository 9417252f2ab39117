"""Export: every router that decides row by row, in every format, equal to the model or refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.artifact import export as exporting
from recsys_moe.artifact import graphs
from recsys_moe.artifact.calibration import Calibration
from recsys_moe.artifact.export import export
from recsys_moe.artifact.graph_formats import FORMATS
from recsys_moe.artifact.graphs import Graph, export_graph, write_graphs
from recsys_moe.artifact.manifest import FILES
from recsys_moe.artifact.model_folder import Artifact, load_artifact, save_artifact
from recsys_moe.artifact.parity import check_parity, near_ties, parity_rows
from recsys_moe.cli import app
from recsys_moe.config.build import build_model
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError, RunError
from recsys_moe.inference.predictor import Predictor
from recsys_moe.model.request import Request
from recsys_moe.routers import ROUTERS
from recsys_moe.routers.selection import descending_order, largest_k
from tests.conftest import TINY_MODEL

EXPORTABLE = [name for name, router in ROUTERS.items() if not router.batch_dependent]
EVERYTHING = "RECSYS_MOE_ALL_EXPORTS" in os.environ
"""ONNX and AOTInductor for all routers: a few minutes."""
IN_ONNX = EXPORTABLE if EVERYTHING else ["moesart", "comet"]
"""Given no row and left alone, onnxruntime refuses the first and ends the process at the second."""


@pytest.fixture(autouse=True)
def one_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "LATENCY_RUNS", 1)


def untrained(run: Path, router: str | dict[str, Any]) -> Artifact:
    """The artifact of `run` with an untrained model whose embeddings are large enough to route."""
    trained = load_artifact(run)
    # With 3 experts X-MoE routes in one dimension, where every cosine is 1 or -1: all ties.
    experts = 5 if router == "xmoe" else 3
    config = parse_config({"model": {**TINY_MODEL, "num_experts": experts, "router": router}})
    torch.manual_seed(0)
    model = build_model(config, trained.schema).eval()
    with torch.no_grad():
        for table in (model.user_embedding, model.item_embedding):
            table.weight.mul_(20)
        if model.moe.output_means is not None:
            model.moe.output_means.mean_EH.uniform_()
    return replace(trained, model=model, config=config)


def written(artifact: Artifact, folder: Path, name: str) -> dict[str, Any]:
    return dict(write_graphs(artifact, folder, [name], lambda step: None))[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTABLE)
def test_the_graph_of_a_router_equals_its_model(run: Path, tmp_path: Path, name: str) -> None:
    report = written(untrained(run, name), tmp_path, "pt2")
    parity = report["parity"]
    assert parity["max_difference"] <= 1e-5 and parity["rows"] == 3 * (1 + 2 + 37 + 1000)
    assert parity["masked_near_ties"] <= 0.01 * parity["rows"]
    assert report["bytes"] == (tmp_path / "model.pt2").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_ONNX)
def test_onnx_runtime_equals_the_model(run: Path, tmp_path: Path, name: str) -> None:
    import onnxruntime

    assert written(untrained(run, name), tmp_path, "onnx")["parity"]["max_difference"] <= 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
        ("user", "tensor(int64)", ["rows"]),
        ("item", "tensor(int64)", ["rows"]),
    ]
    assert [out.name for out in session.get_outputs()] == ["predictions", "calibrated"]
    none = torch.empty(0, dtype=torch.long).numpy()
    outputs = session.run(None, {"user": none, "item": none})
    assert [(out.shape, out.dtype) for out in outputs] == [((0, 2), "float32")] * 2


@pytest.mark.slow
def test_a_calibration_of_many_knots_is_exported(run: Path, tmp_path: Path) -> None:
    bent = Calibration((-1.0, 0.0, 0.5, 2.0), (-2.0, -1.5, 1.0, 1.5), rows=9)
    artifact = replace(untrained(run, "hash"), calibration={"watch": bent})
    assert written(artifact, tmp_path, "onnx")["parity"]["max_difference"] <= 1e-5


@pytest.mark.skipif(not EVERYTHING, reason="RECSYS_MOE_ALL_EXPORTS is not set")
@pytest.mark.parametrize("name", EXPORTABLE)
def test_a_compiled_package_equals_the_model(run: Path, tmp_path: Path, name: str) -> None:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("there is no C++ compiler")
    assert written(untrained(run, name), tmp_path, "aoti")["parity"]["max_difference"] <= 1e-5


@pytest.mark.parametrize(
    "router",
    [
        {"name": "topk", "permutation": True},
        {"name": "moesart", "inference": "dense"},
        {"name": "softmax", "inference": "topk"},
        {"name": "moesart", "joint": 3},
        {"name": "topk", "joint": 3, "k": 3},
    ],
    ids=str,
)
def test_settings_that_change_inference_are_exported_too(
    run: Path, tmp_path: Path, router: dict[str, Any]
) -> None:
    assert written(untrained(run, router), tmp_path, "pt2")["parity"]["max_difference"] <= 1e-5


def test_the_graph_predicts_what_the_predictor_says_about_raw_ids(
    run: Path, tmp_path: Path
) -> None:
    trained, bent = load_artifact(run), Calibration((-1.0, 0.0, 2.0), (-2.0, 0.5, 1.0), rows=9)
    weights, model = trained.model.state_dict(), tmp_path / "model"
    save_artifact(
        model,
        weights,
        trained.config,
        run / "model",
        seen=trained.seen,
        card={},
        calibrations={"watch": bent},
    )
    export(model, tmp_path / "out", ["pt2"])
    runner = FORMATS["pt2"].load(tmp_path / "out" / "model.pt2")
    predictor = Predictor.load(tmp_path / "out")
    scores = predictor.score([1, 2, "nobody"], [3, 4, 3])
    user, _ = predictor.users.index(["1", "2", "nobody"])
    item, _ = predictor.items.index(["3", "4", "3"])
    predictions, calibrated = runner(user, item)
    assert not (predictions.requires_grad or calibrated.requires_grad)  # as of ONNX Runtime
    assert not torch.equal(predictions[:, 0], calibrated[:, 0])
    torch.testing.assert_close(predictions[:, 0], scores.tasks["watch"])
    torch.testing.assert_close(predictions[:, 1], scores.tasks["rating"])
    torch.testing.assert_close(calibrated[:, 0], scores.calibrated["watch"])
    torch.testing.assert_close(calibrated[:, 1], scores.tasks["rating"])


def test_a_model_without_calibration_has_one_output(run: Path) -> None:
    artifact = replace(untrained(run, "hash"), calibration={})
    program = export_graph(artifact)
    assert Graph(artifact).outputs == ("predictions",)
    assert len(program.module()(*(rows[:4] for rows in parity_rows(artifact)))) == 1


def test_the_command_line_writes_a_copy_that_loads_and_says_what_it_measured(
    run: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = tmp_path / "out"
    with caplog.at_level("INFO"):
        command = ["export", str(run), "--out", str(out), "--format", "pt2", "--json"]
        assert app(command, standalone_mode=False) is None
    printed = capfd.readouterr()
    report = json.loads(printed.out)
    assert report == json.loads((out / "export.json").read_text())
    assert {path.name for path in out.iterdir()} == {
        *(*FILES, "manifest.json", "model.pt2", "export.json")
    }
    assert set(report["formats"]["pt2"]["latency_ms"]) == {"1", "1000"}
    assert report["inputs"]["user"]["unseen"] == load_artifact(out).schema.user.size
    assert load_artifact(out).card["val"]["rows"] == load_artifact(run).card["val"]["rows"]
    assert caplog.messages == ["export: pt2"]
    assert printed.err == ""  # no remarks of the exporter on its own work


# --- what is refused


def test_a_graph_that_differs_leaves_nothing_behind(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = Graph(load_artifact(run)).eval()

    def write(program: Any, path: Path, outputs: tuple[str, ...]) -> None:
        path.write_text("a graph")

    def off_by_a_little(path: Path) -> Any:
        assert path.read_text() == "a graph"
        return lambda user, item: tuple(
            out + 1e-4 * (user[:, None] == 0) for out in reference(user, item)
        )

    wrong = replace(FORMATS["pt2"], write=write, load=off_by_a_little)
    monkeypatch.setitem(FORMATS, "pt2", wrong)
    monkeypatch.setattr(graphs, "export_graph", lambda artifact: None)
    with pytest.raises(RunError, match="pt2: predictions .*0.0001"):
        export(run, tmp_path / "out", ["pt2"])
    assert list(tmp_path.iterdir()) == []


def test_the_card_of_an_export_has_every_evaluation_of_the_run(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "model", tmp_path / "run" / "model")
    shutil.copytree(run / "evaluation", tmp_path / "run" / "evaluation")
    (tmp_path / "run" / "evaluation" / "test.json").write_text('{"rows": 7}')
    export(tmp_path / "run", tmp_path / "out")
    card = load_artifact(tmp_path / "out").card
    assert card == {**load_artifact(run).card, "test": {"rows": 7}}


def test_formats_folders_and_missing_extras_are_refused_before_any_work(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="--format .*got 'onx'"):
        export(run, tmp_path / "out", ["onx"])
    for place in (run / "model", run):
        with pytest.raises(ConfigError, match=r"is or holds RUN\|MODEL"):
            export(run, place, overwrite=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="full .*not a model folder"):
        export(run, tmp_path / "full", overwrite=True)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="no-such-compiler is not on PATH"):
        export(run, tmp_path / "out", ["aoti"])
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r'onnxscript.*pip install "recsys-moe\[export\]"'):
        export(run, tmp_path / "out", ["onnx"])
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_an_older_export_is_replaced_on_request(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out")
    (tmp_path / "out" / "model.pt2").write_text("of an older export")
    export(run, tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "model.pt2").exists()


# --- near-ties


def test_rows_count_as_near_ties_exactly_where_the_gate_is_undecided(run: Path) -> None:
    artifact = untrained(run, {"name": "topk", "k": 2})
    gate = artifact.model.routers[0].gate
    with torch.no_grad():
        gate.weight.zero_()
        gate.weight[1:3, 0] = torch.tensor([1.0, 2.0])
        gate.bias.copy_(torch.tensor([9.0, 0.0, 0.0]))
    # Expert 0 is chosen; 1 and 2 have the logits x and 2x: tied where x = 0.
    artifact.model.user_embedding.weight.data[:3, 0] = torch.tensor([0.0, 1e-7, 0.5])
    artifact.model.moe.routers[1] = artifact.model.moe.routers[0]
    tied = near_ties(artifact.model, Request(torch.arange(3), torch.zeros(3, dtype=torch.long)))
    assert tied.tolist() == [True, True, False]


def test_a_model_that_cannot_tell_its_experts_apart_cannot_be_compared(run: Path) -> None:
    artifact = untrained(run, "moesart")
    for router in artifact.model.routers:
        torch.nn.init.zeros_(router.gate.weight)
    graph = Graph(artifact).eval()
    with pytest.raises(RunError, match="at most 1% of the rows may be near-ties .* 3120 of 3120"):
        check_parity("pt2", graph, graph, artifact)


@given(st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=5))
def test_the_exported_order_is_the_stable_one_with_ties(rows: list[list[int]]) -> None:
    values = torch.tensor(rows, dtype=torch.float32)
    expected = descending_order(values), largest_k(values, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_exporting", lambda: True)
        found = descending_order(values), largest_k(values, 3)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("router", "message"),
    [
        *((name, f"got {name}, .*--format") for name in ROUTERS if name not in EXPORTABLE),
        ({"name": "moesart", "inference": "sampled"}, "needs .*got .*=sampled"),
    ],
    ids=str,
)
def test_a_router_that_draws_or_depends_on_the_batch_is_refused(
    run: Path, router: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        exporting._check_router(untrained(run, router))


@pytest.mark.parametrize(
    "broken",
    [
        lambda outs, user, item: [out * torch.nan for out in outs],
        lambda outs, user, item: [out[:, :1] for out in outs],
        lambda outs, user, item: [out[:1].expand_as(out) for out in outs],
        lambda outs, user, item: [outs[0] + 1e-3, outs[1]],
        lambda outs, user, item: [outs[0], outs[1] + 1e-3],
        lambda outs, user, item: [out + 1e-3 * (user & ~item)[:, None] for out in outs],
        lambda outs, user, item: [out + 1e-3 * (user & item)[:, None] for out in outs],
        lambda outs, user, item: [out + 1e-3 * (~user & item)[:, None] for out in outs],
    ],
)
def test_any_output_that_differs_for_any_kind_of_id_is_refused(run: Path, broken: Any) -> None:
    """NaN, missing columns, repeated rows, each output; `user`, `item`: the id is unknown."""
    artifact = load_artifact(run)
    model, schema = Graph(artifact).eval(), artifact.schema

    def runner(user: Any, item: Any) -> Any:
        return broken(model(user, item), user == schema.user.size, item == schema.item.size)

    with pytest.raises(RunError, match="x: (predictions|outputs) must"):
        check_parity("x", runner, model, artifact)


class OfThreeRows(torch.nn.Module):
    def forward(self, user_B: torch.Tensor) -> torch.Tensor:
        return user_B.new_ones(3).expand(len(user_B))


class OfTheirLength(torch.nn.Module):
    def forward(self, user_B: torch.Tensor) -> torch.Tensor:
        return user_B.new_ones(1).expand(len(user_B))


@pytest.mark.parametrize("module", [OfThreeRows, OfTheirLength])
def test_a_graph_of_a_fixed_number_of_rows_is_refused_with_a_remedy(module: Any) -> None:
    """len() is an int while the graph is traced, such as 3."""
    with pytest.raises(RunError, match=r"any number of rows, got .* x\.shape\[0\] rather than len"):
        graphs.traced(module(), (torch.zeros(3, dtype=torch.int64),))
