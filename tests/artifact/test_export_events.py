"""Graphs of models that read events: every mixer, with and without context, equal to the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe.artifact.export import export
from recsys_moe.artifact.graph_formats import FORMATS
from recsys_moe.artifact.graphs import export_graph, graph_of, write_graphs
from recsys_moe.artifact.model_folder import Artifact, load_artifact
from recsys_moe.artifact.parity import EVENT_INPUTS, parity_rows
from recsys_moe.artifact.step_graphs import step_graphs, write_step_graphs
from recsys_moe.config.build import build_model
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.inference.predictor import Predictor
from recsys_moe.model.encoders.mixers import MIXERS
from recsys_moe.model.request import Events, of_items
from recsys_moe.train.fit import fit
from tests.conftest import SEQUENCE_MODEL, TINY_MODEL
from tests.context import CONTEXT
from tests.small_graphs import CHUNK, small_graphs

LATER = 1_100_000_000.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_graphs(monkeypatch)


def untrained(run: Path, mixer: str, *, context: bool = False, length: int = CHUNK + 1) -> Artifact:
    """The artifact of `run` with a model of random weights, in which nothing is 0."""
    trained = load_artifact(run)
    sequence = {"sequence": mixer, "sequence_length": length}
    model = {**TINY_MODEL, **sequence, "context": "all" if context else "none"}
    config = parse_config({"model": model})
    schema = replace(trained.schema, context_features=CONTEXT if context else ())
    torch.manual_seed(0)
    built = build_model(config, schema, finished=True).eval()
    with torch.no_grad():
        for table in built.tables:
            table.weight.mul_(20)
        for name, parameter in built.named_parameters():
            if name.startswith("encoders.") and not parameter.any():
                parameter.normal_(std=0.1)
    return replace(trained, model=built, config=config, schema=schema)


def written(artifact: Artifact, folder: Path, name: str) -> dict[str, Any]:
    return dict(write_graphs(artifact, folder, [name], lambda step: None))[name]


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_the_graph_of_a_mixer_equals_its_model(
    sequence_run: Path, tmp_path: Path, mixer: str, form: str
) -> None:
    """More events than a chunk of a recurrence; batches of no row and of one are tried."""
    report = written(untrained(sequence_run, mixer), tmp_path, form)
    assert report["parity"]["max_difference"] <= 1e-5
    assert report["parity"]["rows"] == 3 * (1 + 2 + 37 + 1000)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_events_and_context_go_together(sequence_run: Path, tmp_path: Path, form: str) -> None:
    artifact = untrained(sequence_run, "decay", context=True, length=5)
    assert written(artifact, tmp_path, form)["parity"]["max_difference"] <= 1e-5
    runner, rows = FORMATS[form].load(tmp_path / FORMATS[form].file), parity_rows(artifact)
    assert len(rows) == 7
    expected, *_ = graph_of(artifact)(*rows)
    without = [one.clone() for one in rows]
    without[2][:] = torch.nan
    assert not torch.allclose(runner(*without)[0], expected)


@pytest.fixture(scope="module")
def program(sequence_run: Path) -> tuple[Artifact, Any]:
    artifact = untrained(sequence_run, "attention", length=6)
    return artifact, export_graph(artifact).module()


@pytest.mark.slow
def test_a_graph_does_not_read_behind_the_events(program: tuple[Artifact, Any]) -> None:
    """Replaced, and permuted, whatever stands there; bit for bit."""
    artifact, module = program
    rows = parity_rows(artifact)
    before, *_ = module(*rows)
    changed = _behind(rows, artifact.schema.item.size)
    assert not torch.equal(changed[2], rows[2])
    assert torch.equal(module(*changed)[0], before)


def _behind(rows: Sequence[Tensor], items: int) -> list[Tensor]:
    user, item, event_item, value, time, count = rows
    behind = torch.arange(event_item.shape[1]) >= count[:, None]
    other = torch.randint_like(event_item, items + 1)
    return [
        user,
        item,
        event_item.where(~behind, other),
        value.where(~behind, 7.0),
        time.where(~behind, time.max() * 2),
        count,
    ]


@pytest.mark.slow
def test_a_graph_reads_items_values_and_times_in_their_order(program: tuple[Artifact, Any]) -> None:
    artifact, module = program
    rows = [one[:200] for one in parity_rows(artifact)]
    many = rows[5] > 1
    before, *_ = module(*rows)
    for place in (2, 3, 4):
        changed = [*rows]
        changed[place] = rows[place].flip(1) if place < 4 else rows[place] * 3
        differs = (module(*changed)[0] != before).any(1)
        assert differs[many].float().mean() > 0.5, EVENT_INPUTS[place - 2]


@pytest.mark.slow
def test_an_exported_folder_says_what_its_inputs_are_and_scores_as_the_predictor(
    sequence_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "exported"
    export(sequence_run, out, formats=["onnx"])
    inputs = json.loads((out / "export.json").read_text())["inputs"]
    assert [*inputs] == ["user", "item", *EVENT_INPUTS]
    assert inputs["event_item"]["shape"] == ["rows", 8]
    predictor = Predictor.load(out)
    events = [{"item": f"i{n}", "time": LATER + n, "value": 1 + n} for n in range(3)]
    expected = predictor.score(["?"], ["i5"], events=events).tasks
    scale = inputs["event_value"]
    item = torch.zeros(1, 8, dtype=torch.long)
    item[0, :3] = predictor.items.index(["i0", "i1", "i2"])[0]
    value, time = torch.full((1, 8), torch.nan), torch.zeros(1, 8, dtype=torch.float64)
    value[0, :3] = (torch.tensor([1.0, 2.0, 3.0]) - scale["mean"]) / scale["std"]
    time[0, :3] = LATER + torch.arange(3)
    pair = torch.tensor([inputs["user"]["unseen"]]), predictor.items.index(["i5"])[0]
    found = FORMATS["onnx"].load(out / "model.onnx")(*pair, item, value, time, torch.tensor([3]))
    for place, task in enumerate(expected):
        assert found[0][0, place] == pytest.approx(float(expected[task]), abs=1e-5)


def test_a_copy_of_a_model_with_time_features_scores_as_the_model(
    timed: Path, tmp_path: Path
) -> None:
    model = {**TINY_MODEL, "time_features": "all"}
    trainer = {"max_epochs": 1, "batch_size": 64}
    fit(parse_config({"model": model, "trainer": trainer}), timed, tmp_path / "run")
    export(tmp_path / "run", tmp_path / "copy")
    one, other = (Predictor.load(tmp_path / name) for name in ("run", "copy"))
    assert one.artifact.past is not None
    users, items = (ids.ids[:5].to_pylist() for ids in (one.users, one.items))
    context = {"time": LATER}
    expected, found = (p.score(users, items, context=context).tasks for p in (one, other))
    for task in expected:
        assert torch.equal(found[task], expected[task])


@pytest.mark.slow
@pytest.mark.parametrize("names", ["all", "age", "gap,hour"])
def test_exports_read_the_time_as_the_model_does(names: str, timed: Path, tmp_path: Path) -> None:
    sequence = {**SEQUENCE_MODEL, "sequence_length": CHUNK + 1} if names == "all" else {}
    model = {**TINY_MODEL, **sequence, "time_features": names}
    optim, trainer = {"lr": 0.02}, {"max_epochs": 2, "batch_size": 128}
    asked = {"model": model, "optim": optim, "trainer": trainer}
    fit(parse_config(asked), timed, tmp_path / "run")
    report = export(tmp_path / "run", tmp_path / "out", ["pt2", "onnx"])
    assert {*report["formats"]} >= {"pt2", "onnx"}
    assert report["inputs"]["time"]["missing"] == "NaN"


@pytest.mark.slow
@pytest.mark.parametrize(("mixer", "form"), [("lru", "onnx"), ("attention", "pt2")])
def test_events_one_by_one_through_the_step_score_as_the_whole_window(
    sequence_run: Path, tmp_path: Path, mixer: str, form: str
) -> None:
    """All events of each row, then the scorer; batches of no row and of one are tried."""
    artifact = untrained(sequence_run, mixer, context=mixer == "attention")
    [(name, report)] = write_step_graphs(artifact, tmp_path, [form], lambda step: None)
    assert name == form and report["parity"]["max_difference"] <= 1e-5
    assert report["parity"]["rows"] == 3 * (1 + 2 + 37 + 1000)
    assert {*report["files"]} == {f"step.{form}", f"scorer.{form}"}


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
def test_the_step_starts_from_zeros_and_gives_what_the_encoder_says(
    sequence_run: Path, mixer: str
) -> None:
    artifact = untrained(sequence_run, mixer)
    step, _ = step_graphs(artifact)
    inputs = [one[:37] for one in parity_rows(artifact)]
    item, value, time, _ = inputs[2:]
    state = [one.new_zeros(37, *one.shape[1:]) for one in step.encoder.start(1)]
    events = Events(item, value, time, torch.arange(37), torch.full((37,), item.shape[1]))
    with torch.no_grad():
        whole = step.encoder.encode(step.model.encode_items(of_items(item)), events)
        for place in range(item.shape[1]):
            vector, *state = step(item[:, place], value[:, place], time[:, place], *state)
            expected = whole[:, place] - step.encoder.nothing_D
            torch.testing.assert_close(vector, expected, rtol=1e-5, atol=1e-5)


def test_a_step_is_refused_without_a_format_and_without_events(
    sequence_run: Path, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--step needs --format pt2, onnx or both, got none"):
        export(sequence_run, tmp_path / "out", step=True)
    with pytest.raises(ConfigError, match="--step needs a model that reads events"):
        export(run, tmp_path / "out", ["pt2"], step=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_exported_step_says_what_its_inputs_are(sequence_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    export(sequence_run, out, formats=["pt2"], step=True)
    report = json.loads((out / "export.json").read_text())
    assert "inputs" not in report
    inputs, outputs = report["step"]["inputs"], report["step"]["outputs"]
    assert [*inputs][:3] == ["event_item", "event_value", "event_time"]
    assert inputs["state_0"] == {"dtype": "float32", "shape": ["rows", 3], "start": 0}
    assert outputs == ["event_vector", *(f"new_{name}" for name in [*inputs][3:])]
    assert [*report["scorer"]["inputs"]] == ["user", "item", "event_vector"]
    events = [{"item": f"i{n}", "time": LATER + n, "value": 1 + n} for n in range(3)]
    predictor = Predictor.load(out)
    expected = predictor.score(["?"], ["i5"], events=events).tasks
    step, scorer = (FORMATS["pt2"].load(out / f"{name}.pt2") for name in ("step", "scorer"))
    scale, kinds = inputs["event_value"], [*inputs.values()][3:]
    state = [torch.zeros(1, *one["shape"][1:], dtype=getattr(torch, one["dtype"])) for one in kinds]
    for event in events:
        value = torch.tensor([(event["value"] - scale["mean"]) / scale["std"]]).float()
        index, time = predictor.items.index([event["item"]])[0], torch.tensor([event["time"]])
        vector, *state = step(index, value, time.double(), *state)
    user = torch.tensor([report["scorer"]["inputs"]["user"]["unseen"]])
    [found, *_] = scorer(user, predictor.items.index(["i5"])[0], vector)
    for place, task in enumerate(expected):
        assert found[0, place] == pytest.approx(float(expected[task]), abs=1e-5)
