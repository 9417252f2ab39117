"""Context features in training: what only they can tell, and the same bytes on every way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from data_prep import table
from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.export import export
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.build import build_model
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.predictor import Predictor
from recsys_moe.schema import Schema
from recsys_moe.train.fit import dry_run, fit
from tests.conftest import TINY_MODEL, Command
from tests.context import with_context
from tests.train.processes.test_encoder_devices import alike, fit_on_two
from tests.train.test_resume import STEP, VALIDATION, fit_in_pieces, results

TABLE = "encoders.context.table_RD"
WITHOUT_MEANS = {"biases": False, "router": "softmax"}
RESAMPLED = {"resample_negatives": True, "popularity_exponent": 0.75, "user_exponent": 0.0}


def config(model: dict[str, Any] | None = None, **sections: Any) -> Config:
    trainer = {"max_epochs": 2, "batch_size": 64, **sections.pop("trainer", {})}
    model = {**TINY_MODEL, "context": "all", **(model or {})}
    return parse_config({"model": model, "trainer": trainer, **sections})


def solvable(folder: Path, users: int = 40, groups: int = 12) -> Path:
    """Positives of items whose group is that of the hour: 4 items for each hour, and each user has
    items of all groups. Who takes an item at an hour follows from both, and from neither alone."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        (user, item, item % groups, ("tv", "phone")[item * user % 2])
        for user in range(users)
        for item in torch.randperm(4 * groups, generator=generator)[: 2 * groups].tolist()
    ]
    log = folder / "log.csv"
    pd.DataFrame(rows, columns=["user", "item", "hour", "device"]).to_csv(log, index=False)
    table.prepare(
        folder / "data",
        input=log,
        user="user",
        item="item",
        tasks=["watch:binary"],
        negatives="per-user",
        context=["hour:categorical=hour", "device:categorical=device"],
    )
    return folder / "data"


@pytest.mark.slow
@pytest.mark.parametrize("data_settings", [{}, {"resample_negatives": True}, RESAMPLED], ids=str)
def test_a_log_that_only_context_explains(data_settings: dict[str, Any], tmp_path: Path) -> None:
    """Of 12 hours a negative has that of its item once in 12: no AUC is above 1 - 1 / 24."""
    data, found = solvable(tmp_path), {}
    own = {"embedding_dim": 16, "expert_dim": 32, "dropout": 0.1, "router": "softmax"}
    for context in ("none", "all"):
        sections: dict[str, Any] = {"data": data_settings, "optim": {"lr": 0.01}}
        asked = config({**own, "context": context}, **sections, trainer={"max_epochs": 14})
        fit(asked, data, tmp_path / context)
        found[context] = evaluate_artifact(tmp_path / context, "test", None)
    auc = {context: one["tasks"]["watch"]["auc"] for context, one in found.items()}
    assert 0.4 < auc["none"] < 0.62 and auc["all"] > 0.9, auc
    segments = found["all"]["segments"]
    assert {f"hour={n}" for n in range(12)} | {"device=tv", "device=phone"} <= segments.keys()
    assert segments["device=tv"]["rows"] + segments["device=phone"]["rows"] == found["all"]["rows"]
    predictor = Predictor.load(tmp_path / "all")
    for hour in (3, 8):  # of 48 items the 4 of the hour come first
        ranked = predictor.recommend([1], 4, context={"hour": hour})[0]
        assert sum(int(one.item) % 12 == hour for one in ranked) >= 3


@pytest.mark.slow
def test_scores_without_a_context_are_right_in_the_mean(tmp_path: Path) -> None:
    """Seconds are 20 to 160 by the hour, most of them early: a mean of 48. Without dropout the
    score of no context is far from it, with it within a tenth; with a context both are right."""
    hours = [0] * 8 + [1] * 4 + [2] * 2 + [3] * 2
    rows = [(u, i, hours[(5 * u + 3 * i) % 16]) for u in range(60) for i in range(u % 2, 40, 2)]
    frame = pd.DataFrame(rows, columns=["user", "item", "hour"]).assign(
        seconds=lambda one: 20.0 * 2.0**one.hour
    )
    context, tasks = ["hour:categorical=hour"], ["seconds:duration=seconds"]
    frame.to_csv(tmp_path / "log.csv", index=False)
    options = {"user": "user", "item": "item", "tasks": tasks, "context": context}
    table.prepare(tmp_path / "data", input=tmp_path / "log.csv", **options)
    wrong = {}
    for rate in (0.0, 0.1):
        sections: dict[str, Any] = {"data": {"context_dropout": rate}, "optim": {"lr": 0.01}}
        asked = config(WITHOUT_MEANS, **sections, trainer={"max_epochs": 20})
        fit(asked, tmp_path / "data", tmp_path / "r")
        predictor = Predictor.load(tmp_path / "r")
        pairs = frame.user.astype(str).tolist(), frame.item.astype(str).tolist()
        known = predictor.score(*pairs, context=[{"hour": h} for h in frame.hour])
        for name, found in (("known", known), ("none", predictor.score(*pairs))):
            wrong[name, rate] = float(found.tasks["seconds"].mean()) / frame.seconds.mean() - 1
        shutil.rmtree(tmp_path / "r")
    assert abs(wrong["known", 0.0]) < 0.05 and abs(wrong["known", 0.1]) < 0.05, wrong
    assert abs(wrong["none", 0.1]) < 0.1 and abs(wrong["none", 0.0]) > 0.25, wrong


def test_training_starts_as_without_context(contextual: Path) -> None:
    schema, states = Schema.load(contextual), []
    for context in ("none", "all"):
        torch.manual_seed(0)
        states.append(build_model(config({"context": context}), schema).state_dict())
    assert states[1].keys() - states[0].keys() == {TABLE}
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert states[1][TABLE].shape == (5 + 1, 8) and not states[1][TABLE].any()


def test_the_model_folder_holds_the_table_and_its_version_says_so(context_run: Path) -> None:
    folder = context_run / "model"
    weights = load_file(folder / "weights.safetensors")
    assert weights[TABLE].abs().min() > 0
    assert json.loads((folder / "manifest.json").read_text())["format_version"] == 5
    assert sorted(name for name in weights if name.startswith("encoders.")) == [TABLE]
    assert load_artifact(folder).model.encoders is not None


@pytest.mark.slow
@pytest.mark.parametrize("buffer", ["auto", 250])
def test_a_run_in_pieces_ends_in_the_same_bytes(
    buffer: Any, contextual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config({"features": "all"}, data={**RESAMPLED, "shuffle_buffer": buffer})
    fit(settings, contextual, tmp_path / "whole")
    stops = [(STEP, 17), (VALIDATION, 1)]
    fit_in_pieces(monkeypatch, settings, contextual, tmp_path / "pieces", stops)
    assert results(tmp_path / "pieces") == results(tmp_path / "whole")


@pytest.mark.slow
def test_two_devices_end_with_the_weights_of_one(prepared: Path, tmp_path: Path) -> None:
    model = {**TINY_MODEL, "context": "all", "dropout": 0.0, "router": {"name": "softmax"}}
    asked: dict[str, Any] = {
        "model": model,
        "data": {"id_dropout": 0.0},
        "optim": {"lr": 1e-2, "router_lr_multiplier": 1.0},
        "trainer": {"max_epochs": 2, "batch_size": 64, "patience": 1000},
    }
    data = with_context(prepared, tmp_path / "data")
    fit(asked, data, tmp_path / "one")
    fit_on_two(data, tmp_path / "two", asked)
    assert TABLE in alike(tmp_path / "one", tmp_path / "two", "weights.safetensors")


def test_a_dry_run_trains_a_step_and_says_what_it_does_not_read(
    contextual: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "recsys_moe.fit")
    assert dry_run(config(), contextual, tmp_path / "run")["loss_of_first_batch"] > 0
    assert "does not read the context" not in caplog.text
    dry_run(config({"context": "none"}), contextual, tmp_path / "run")
    assert "does not read the context (hour, price); model.context=all does" in caplog.text
    with pytest.raises(ConfigError, match="model.context must be of hour, price, got 'our'"):
        dry_run(config({"context": "our"}), contextual, tmp_path / "run")


def test_data_with_other_categories_are_refused(
    contextual: Path, context_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(contextual, tmp_path / "data")
    names = pd.read_parquet(tmp_path / "data" / "features.parquet")
    names.replace({"value": {"3h": "4h"}}).to_parquet(tmp_path / "data" / "features.parquet")
    with pytest.raises(DataError, match="context features hour, price must have the categories"):
        evaluate_artifact(context_run, "test", tmp_path / "data")
    text = (tmp_path / "data" / "schema.json").read_text()
    (tmp_path / "data" / "schema.json").write_text(text.replace('"mean": 10.0', '"mean": 11.0'))
    shutil.copyfile(contextual / "features.parquet", tmp_path / "data" / "features.parquet")
    with pytest.raises(DataError, match="context features hour, price must have the categories"):
        evaluate_artifact(context_run, "test", tmp_path / "data")


def test_the_evaluation_is_by_context_too(context_run: Path) -> None:
    found = evaluate_artifact(context_run, "test", None)
    names = [f"hour={n}" for n in ("0h", "1h", "2h", "3h", "(unknown)", "(missing)")]
    assert [name for name in found["segments"] if "=" in name] == names  # and none by price
    assert sum(found["segments"][name]["rows"] for name in names) == found["rows"]


@pytest.mark.slow
def test_exports_have_the_context_as_an_input(context_run: Path, tmp_path: Path) -> None:
    import onnxruntime

    report = export(context_run, tmp_path / "out", ["pt2", "onnx"])
    for name in ("pt2", "onnx"):
        assert report["formats"][name]["parity"]["max_difference"] <= 1e-5
    assert report["inputs"]["context"] == {
        "dtype": "float32",
        "shape": ["rows", 2],
        "missing": "NaN",
        "columns": [
            {"name": "hour", "kind": "categorical", "range": [0, 4], "unseen": 4},
            {"name": "price", "kind": "numeric", "mean": 10.0, "std": 2.0},
        ],
    }
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
        ("user", "tensor(int64)", ["rows"]),
        ("item", "tensor(int64)", ["rows"]),
        ("context", "tensor(float)", ["rows", 2]),
    ]
    index, context = torch.tensor([5]), torch.tensor([[3.0, 1.25]])
    given = {"user": index, "item": index, "context": context}
    found = session.run(None, {name: one.numpy() for name, one in given.items()})[0]
    predictor = Predictor.load(context_run)
    user, item = predictor.users.ids[5].as_py(), predictor.items.ids[5].as_py()
    scores = predictor.score([user], [item], context={"hour": "3h", "price": 12.5}).tasks
    assert found[0].tolist() == pytest.approx([float(one) for one in scores.values()], abs=1e-5)


@pytest.mark.slow
def test_a_warm_start_keeps_the_rows_of_known_categories(
    contextual: Path, context_run: Path, tmp_path: Path
) -> None:
    """A new hour starts at 0. At a learning rate of about 0 known pairs keep their scores, where
    the scale of the price stays."""
    shutil.copytree(contextual, tmp_path / "data")
    names = pd.read_parquet(tmp_path / "data" / "features.parquet")
    names.loc[names.value == "2h", "value"] = "5h"
    names.to_parquet(tmp_path / "data" / "features.parquet", index=False)
    asked = {"trainer": {"max_epochs": 1, "batch_size": 64}, "optim": {"lr": 1e-12}}
    fit(asked, tmp_path / "data", tmp_path / "run", init_from=context_run)
    runs = context_run, tmp_path / "run"
    before, after = (load_file(run / "model" / "weights.safetensors") for run in runs)
    torch.testing.assert_close(after[TABLE][[0, 1, 3, 5]], before[TABLE][[0, 1, 3, 5]])
    assert after[TABLE][2].abs().max() < 1e-6
    old, new = Predictor.load(context_run), Predictor.load(tmp_path / "run")
    context = {"hour": "3h", "price": 9}
    users, items = old.users.ids.to_pylist()[:20], old.items.ids.to_pylist()[:20]
    scores = [one.score(users, items, context=context).tasks["rating"] for one in (old, new)]
    torch.testing.assert_close(*scores, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_warm_start_may_add_the_context_or_leave_it_out(
    contextual: Path, context_run: Path, tmp_path: Path
) -> None:
    asked = {"trainer": {"max_epochs": 1, "batch_size": 64}}
    bare = {**asked, "model": {"context": "none"}}
    fit(bare, contextual, tmp_path / "without", init_from=context_run)
    assert TABLE not in load_file(tmp_path / "without" / "model" / "weights.safetensors")
    more = {**asked, "model": {"context": "hour"}}
    fit(more, contextual, tmp_path / "with", init_from=tmp_path / "without")
    assert load_file(tmp_path / "with" / "model" / "weights.safetensors")[TABLE].shape == (5, 8)


def test_doctor_reads_such_data_and_models(
    command: Command, contextual: Path, context_run: Path
) -> None:
    done = command("doctor", "--data", contextual, "--run", context_run)
    assert done.exit_code == 0, done.out
