"""Shuffled features and histories: what the losses rise by."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.model_folder import Artifact, load_artifact
from recsys_moe.artifact.segments import NAMES
from recsys_moe.cli import app
from recsys_moe.data.columns import load_columns
from recsys_moe.lab.report import importance as module
from recsys_moe.lab.report.importance import SHUFFLES, importance
from tests.context import CONTEXT
from tests.lab.report.conftest import silent

PARTS = {"age", "job", "history of users", "genres", "year", "history of items"}


@pytest.fixture
def artifact(featured_run: Path) -> Artifact:
    return load_artifact(featured_run)


def test_losses_before_are_those_of_evaluate_and_every_part_is_shuffled(
    artifact: Artifact, featured_run: Path, featured: Path
) -> None:
    rows = load_columns(featured, artifact.schema, "val")
    found = importance(artifact, rows, "val", seed=0, progress=silent)
    assert found is not None
    tasks = evaluate_artifact(featured_run, "val", featured)["tasks"]
    assert found.before["watch"] == pytest.approx(tasks["watch"]["bce"], abs=1e-6)
    assert found.before["rating"] == pytest.approx(tasks["rating"]["mse"], abs=1e-6)
    assert (found.rows, found.metric) == (len(rows), {"watch": "bce", "rating": "mse"})
    for rise in found.rise.values():
        assert rise.keys() == PARTS == {*found.parts}
        assert all(len(values) == SHUFFLES for values in rise.values())
    assert importance(artifact, rows, "val", seed=0, progress=silent) == found
    assert importance(artifact, rows, "val", seed=1, progress=silent) != found


@torch.no_grad()
def test_a_part_that_adds_nothing_changes_nothing_and_one_that_adds_much_does(
    artifact: Artifact, featured: Path
) -> None:
    """Year (the last row of the table) times 30 in the finished vectors: its shuffle must hurt or
    help more than anything; the others are set to 0, their vectors hold none of them."""
    model, tables = artifact.model, dict(artifact.encoders)
    rows = load_columns(featured, artifact.schema, "val")
    before = {"items": tables["items.table_RD"].clone()}
    tables["users.table_RD"] = torch.zeros_like(tables["users.table_RD"])
    for name in ("item_bag.table_RW", "user_bag.table_RW"):
        tables[name] = torch.zeros_like(tables[name])
    tables["items.table_RD"] = torch.zeros_like(before["items"])
    tables["items.table_RD"][-1] = 3.0
    weight = model.item_embedding.weight
    columns = {
        name: values
        for name, values in module._features(  # noqa: SLF001
            replace(artifact, encoders=tables),
            "item",
            torch.arange(40),
        )
    }
    weight[:40] += columns["year"]
    found = importance(replace(artifact, encoders=tables), rows, "val", seed=0, progress=silent)
    assert found is not None
    for rise in found.rise.values():
        for part in PARTS - {"year"}:
            assert rise[part] == pytest.approx([0.0] * SHUFFLES, abs=1e-9)
        assert max(map(abs, rise["year"])) > 1e-3


def test_users_that_training_does_not_know_are_left_alone(
    artifact: Artifact, featured: Path
) -> None:
    rows = load_columns(featured, artifact.schema, "val")
    size = artifact.schema.user.size
    rows = replace(rows, user=torch.full_like(rows.user, size))
    found = importance(artifact, rows, "val", seed=0, progress=silent)
    assert found is not None
    for rise in found.rise.values():
        for part in ("age", "job", "history of users"):
            assert rise[part] == [0.0] * SHUFFLES


@pytest.fixture(scope="module")
def page(featured_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "out"
    assert CliRunner().invoke(app, ["report", str(featured_run), "--out", str(out)]).exit_code == 0
    return out


@pytest.mark.slow
def test_the_report_shows_it_on_validation_and_leaves_test_unread(page: Path) -> None:
    shown = json.loads((page / "figures" / "importance.json").read_text())
    assert shown["data"]["split"] == "val"
    assert json.loads((page / "report.json").read_text())["split"] == "test"
    text = (page / "report.html").read_text()
    assert "Permutation importance" in text
    for task, parts in shown["data"]["rise"].items():
        for part, rise in parts.items():
            assert f'<th scope="row">{part}</th>' in text
            assert f"<td>{sum(rise) / SHUFFLES:+.5f}</td>" in text, (task, part)


@pytest.mark.slow
def test_the_report_has_a_table_of_cold_rows_where_there_are_any(
    page: Path, featured_run: Path, featured: Path, tmp_path: Path
) -> None:
    """A user that training does not know has the index behind the last one: 60 of 60."""
    assert "Warm and cold" not in (page / "report.html").read_text()
    data = Path(shutil.copytree(featured, tmp_path / "data"))
    [part] = (data / "test").iterdir()
    table = pq.read_table(part)
    users = [60 if row % 3 == 0 else u for row, u in enumerate(table["user_index"].to_pylist())]
    place = table.column_names.index("user_index")
    column = pa.array(users, table["user_index"].type)
    pq.write_table(table.set_column(place, "user_index", column), part)
    words = ["report", str(featured_run), "--data", str(data), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, words).exit_code == 0
    text = (tmp_path / "out" / "report.html").read_text()
    assert "Warm and cold rows: by whether training rows have the user and the item" in text
    segments = evaluate_artifact(featured_run, "test", data)["segments"]
    cold = sum(
        segments[name]["rows"] for name in ("user_unseen", "both_unseen") if name in segments
    )
    assert cold == -(-len(table) // 3)
    for name in NAMES:
        head = f'<th scope="row">{name.replace("_", " ")}</th>'
        rows = f"<td>{segments[name]['rows']:,}</td>" if name in segments else ""
        assert (head + rows in text) == (name in segments)


@pytest.mark.slow
def test_context_features_are_shuffled_among_the_rows(
    context_run: Path, contextual: Path, tmp_path: Path
) -> None:
    artifact = load_artifact(context_run)
    rows = load_columns(contextual, artifact.schema, "val", CONTEXT)
    found = importance(artifact, rows, "val", seed=0, progress=silent)
    assert found is not None and {"hour", "price", "age"} <= {*found.parts}
    assert all(any(rise["hour"]) for rise in found.rise.values())
    result = CliRunner().invoke(app, ["report", str(context_run), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / "report.html").read_text()
    assert "Rows by their context" in text and "hour=(missing)" in text
