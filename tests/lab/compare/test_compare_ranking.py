"""compare --ranking: the figures of ranked lists are columns, tested as the others are."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.errors import ConfigError
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.lab.compare.run import compare
from recsys_moe.lab.jobs.lab_run import LabRun
from recsys_moe.schema import Schema
from tests.lab.in_process import ASKED, InProcess


@pytest.fixture(scope="module")
def ranked(comparison: Path, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that was finished before anybody asked for rankings."""
    out = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("ranked") / "out"))
    asked = replace(ASKED, ranking=True)
    assert compare(asked, prepared, out, executor=InProcess()).failures == []
    return out


def test_rankings_are_added_to_runs_that_are_finished(ranked: Path, comparison: Path) -> None:
    found = json.loads((ranked / "results.json").read_text())
    for run in found["runs"]:
        test = json.loads((ranked / run["run"] / "evaluation" / "test.json").read_text())
        for name in ("ndcg", "recall", "mrr", "hit_rate", "gauc", "coverage", "popularity"):
            assert run["values"][f"ranking.{name}"] == test["ranking"][name]
        weights = f"{run['run']}/model/weights.safetensors"
        assert (ranked / weights).read_bytes() == (comparison / weights).read_bytes()
    tested = {test["column"] for test in found["groups"][0]["tests"]}
    assert {"ranking.ndcg", "ranking.gauc"} < tested and "ranking.coverage" not in tested


def test_the_tables_have_the_columns_and_say_what_they_are(ranked: Path) -> None:
    table = (ranked / "table.md").read_text()
    head = "| NDCG@10 | recall@10 | MRR@10 | hit rate@10 | GAUC | coverage | mean popularity |"
    assert head in table
    assert (
        "- NDCG, recall, MRR, hit rate at 10, coverage and popularity: of each user's top 10"
        in (table)
    )
    runs = list(csv.DictReader((ranked / "runs.csv").read_text().splitlines()))
    assert all(0 < float(run["ranking.ndcg"]) < 1 for run in runs)
    assert all(0 < float(run["ranking.coverage"]) <= 1 for run in runs)
    for name in ("runs.csv", "epochs.csv"):
        assert "val.ranking" not in (ranked / name).read_text()


@pytest.mark.parametrize("options", [{"k": 5}, {"relevant": "rating>=4"}])
def test_lists_that_were_judged_otherwise_are_judged_again(
    ranked: Path, prepared: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    out = Path(shutil.copytree(ranked, tmp_path / "out"))
    run = json.loads((out / "results.json").read_text())["runs"][0]
    file = out / run["run"] / "evaluation" / "test.json"
    kept = json.loads(file.read_text())
    other = evaluate_ranking(out / run["run"], "test", prepared, **options)
    assert other["ndcg"] != kept["ranking"]["ndcg"]
    file.write_text(json.dumps({**kept, "ranking": other}))
    compare(replace(ASKED, ranking=True), prepared, out, executor=InProcess())
    assert json.loads(file.read_text())["ranking"] == kept["ranking"]
    again = json.loads((out / "results.json").read_text())["runs"][0]
    assert again["values"]["ranking.ndcg"] == run["values"]["ranking.ndcg"]


def test_lists_by_another_task_are_none_of_a_comparison_s(ranked: Path, tmp_path: Path) -> None:
    found = json.loads((ranked / "results.json").read_text())["runs"][0]["run"]
    run = LabRun(Path(shutil.copytree(ranked, tmp_path / "out")), "runs", Path(found).name)
    file = run.folder / "evaluation" / "test.json"
    kept = json.loads(file.read_text())
    assert run.ranking("test") == kept["ranking"]
    file.write_text(json.dumps({**kept, "ranking": {**kept["ranking"], "task": "rating"}}))
    assert run.ranking("test") is None


def test_asking_again_starts_nothing(ranked: Path, prepared: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (ranked / "runs").rglob("*")}
    compare(replace(ASKED, ranking=True), prepared, ranked, executor=InProcess())
    assert {path: path.stat().st_mtime_ns for path in (ranked / "runs").rglob("*")} == before


def test_what_cannot_be_ranked_is_refused_before_training(prepared: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(prepared, tmp_path / "data"))
    schema = Schema.load(data)
    ratings = replace(schema, tasks=tuple(t for t in schema.tasks if t.kind == "regression"))
    (data / "schema.json").write_text(ratings.to_json())
    asked = replace(ASKED, ranking=True, weights=())
    with pytest.raises(ConfigError, match="--ranking .*got the model's rating"):
        compare(asked, data, tmp_path / "out", executor=InProcess())
    assert not (tmp_path / "out" / "runs").exists()
