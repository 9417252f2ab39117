"""Every kind from a table to predictions: the model beats what needs no model, and is served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recsys_moe.kinds import HIGHER_IS_BETTER, KINDS, metric_title
from tests.conftest import Command
from tests.serve.conftest import Caller

USERS, ITEMS, ROWS = 120, 40, 4000


def log_of(folder: Path) -> Path:
    """A log in which users like items of their own taste; column `<kind>` has labels of a kind."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, USERS, ROWS), rng.integers(0, ITEMS, ROWS)
    taste = 1.2 * np.where(user % 2 == item % 2, 1.0, -1.0) + 0.3 * rng.standard_normal(ITEMS)[item]
    clicked = (rng.random(ROWS) < 1 / (1 + np.exp(-2 * taste))).astype(int)
    table = pd.DataFrame(
        {
            "user": user,
            "item": item,
            "binary": clicked,
            "ranking": clicked,
            "regression": (3 + taste + 0.3 * rng.standard_normal(ROWS)).round(2),
            "ordinal": np.clip((3 + taste + 0.8 * rng.standard_normal(ROWS)).round(), 1, 5),
            "multiclass": np.select([taste > 0.9, taste > -1], ["great", "so so"], "bad"),
            "count": rng.poisson(np.exp(0.5 + taste)),
            "duration": (60 * np.exp(taste) * rng.gamma(2, 0.5, ROWS) + 0.01).round(3),
        }
    )
    table.loc[rng.random(ROWS) < 0.05, list(KINDS)] = np.nan
    table = table.drop_duplicates(["user", "item"])
    table.to_csv(folder / "log.csv", index=False)
    return folder / "log.csv"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return log_of(tmp_path_factory.mktemp("log"))


SMALL = """
model:
  {embedding_dim: 8, num_experts: 4, expert_dim: 16, tower_dims: [16], bilinear_rank: 4, dropout: 0}
optim: {lr: 0.02}
trainer: {batch_size: 256}
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_goes_from_a_table_to_ranked_lists(
    kind: str, log: Path, command: Command, tmp_path: Path
) -> None:
    data, run, model = tmp_path / "data", tmp_path / "run", tmp_path / "model"
    ids = ["--user", "user", "--item", "item"]
    task = ["--task", f"mine:{kind}={kind}"]
    assert command("prepare", "table", "--input", log, *ids, *task, "--out", data).exit_code == 0
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    done = command("fit", "--data", data, "--max-epochs", 12, "--config", config, "--out", run)
    assert done.exit_code == 0, done.err
    result = json.loads(command("evaluate", run, "--split", "test", "--json").out)
    own, checked = result["tasks"]["mine"], 0
    for figures in result["baselines"]["mine"].values():
        for metric, bound in figures.items():
            better = own[metric] > bound if metric in HIGHER_IS_BETTER else own[metric] < bound
            assert better, (metric, own[metric], bound)
            checked += 1
    assert checked
    metric = KINDS[kind].headline
    worse = "--max" if metric in HIGHER_IS_BETTER else "--min"
    assert command("evaluate", run, worse, f"mine.{metric}={own[metric]}").exit_code in (0, 4)
    scores = tmp_path / "scores.csv"
    assert command("predict", run, "--input", log, "--output", scores).exit_code == 0
    found, table = pd.read_csv(scores), pd.read_csv(log)
    columns = [c for c in found if c.startswith("mine") and c not in table and c != "mine"]
    assert np.isfinite(found[columns or ["mine"]]).all(axis=None)
    assert ("mine_calibrated" in found) == KINDS[kind].calibrates
    if not KINDS[kind].ranks:
        names = {f"mine_{name}" for name in ("bad", "great", "so so")}
        assert names < {*found} and set(found["mine"]) == {"bad", "great", "so so"}
        assert found[sorted(names)].sum(axis=1).to_numpy() == pytest.approx(1, abs=1e-5)
        assert (found["mine"] == table["multiclass"]).mean() > 0.8
        assert "got classes only" in command.fails(2, "recommend", run, "--user", 3)
        assert command("export", run, "--out", model, "--format", "pt2").exit_code == 0
        assert command("report", run, "--out", tmp_path / "report").exit_code == 0
        asked = {"users": [3, 3], "items": [1, 2]}
        reply = Caller(model).post("/predict", asked).json()
        assert {*reply["scores"]} == names and len(reply["classes"]["mine"]) == 2
        return
    listed = json.loads(command("recommend", run, "--user", 3, "--k", 5, "--json").out)
    assert len(listed["items"]) == 5
    assert sum(int(one["item"]) % 2 for one in listed["items"]) >= 4  # user 3 likes odd items
    assert command("export", run, "--out", model, "--format", "pt2").exit_code == 0
    assert command("report", run, "--out", tmp_path / "report").exit_code == 0
    assert metric_title(metric) in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    serving = Caller(model)
    task_info = serving("GET", "/model").json()["tasks"][0]
    assert task_info["kind"] == kind
    assert task_info["is_probability"] == KINDS[kind].is_probability
    asked = {"users": [3, 3], "items": [1, 2]}
    likes, dislikes = serving.post("/predict", asked).json()["scores"]["mine"]
    assert likes > dislikes
