"""One model, one score: the graphs, the command line, the Python API and HTTP agree to 1e-5.

Set RECSYS_MOE_RUN to a run folder (one of MovieLens-1M, say) to compare on that model; otherwise a
small trained one is used.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recsys_moe.artifact.export import FORMATS, export
from recsys_moe.cli import app
from recsys_moe.inference.predictor import Predictor
from tests.serve.conftest import threaded

TOLERANCE = 1e-5
K = 5


@pytest.fixture(scope="module")
def model(run: Path) -> Path:
    return Path(os.environ.get("RECSYS_MOE_RUN", run))


def command(*words: object) -> None:
    app([str(word) for word in words], standalone_mode=False)


def ranked_by_api(predictor: Predictor, users: list[Any]) -> pd.DataFrame:
    """One row per recommendation: the pairs that all ways are asked for."""
    lists = predictor.recommend(users, K)
    rows = [
        {"user": user, "item": entry.item, **entry.scores}
        for user, entries in zip(users, lists, strict=True)
        for entry in entries
    ]
    return pd.DataFrame(rows)


def by_graph(name: str, predictor: Predictor, pairs: pd.DataFrame, out: Path) -> np.ndarray:
    runner = FORMATS[name].load(out / FORMATS[name].file)
    user, _ = predictor.users.index(list(pairs["user"]))
    item, _ = predictor.items.index(list(pairs["item"]))
    return runner(user, item)[0].detach().numpy()


@pytest.mark.slow
def test_every_way_out_of_a_model_gives_the_same_scores(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor = Predictor.load(model)
    users = [*predictor.users.ids[:6].to_pylist(), "somebody new"]
    pairs = ranked_by_api(predictor, users)
    tasks = [task.name for task in predictor.tasks]
    found: dict[str, np.ndarray] = {}

    scores = predictor.score(list(pairs["user"]), list(pairs["item"]))
    found["Python score"] = np.stack([scores.tasks[name].numpy() for name in tasks], 1)

    export(model, tmp_path / "out", ["pt2", "onnx"])
    for name in ("pt2", "onnx"):
        found[name] = by_graph(name, predictor, pairs, tmp_path / "out")

    pairs[["user", "item"]].to_csv(tmp_path / "pairs.csv", index=False)
    command("predict", model, "--input", tmp_path / "pairs.csv", "--output", tmp_path / "o.csv")
    found["predict"] = pd.read_csv(tmp_path / "o.csv")[tasks].to_numpy()

    line = ["recommend", model, "--user", users[0], "--k", K, "--json"]
    capsys.readouterr()
    command(*line)
    first = json.loads(capsys.readouterr().out)["items"]
    assert [str(entry["item"]) for entry in first] == [str(i) for i in pairs["item"][:K]]
    ours = np.array([[entry[name] for name in tasks] for entry in first])
    np.testing.assert_allclose(ours, pairs[tasks][:K], atol=TOLERANCE, rtol=0)

    with threaded(model) as server:
        body = {"users": list(pairs["user"]), "items": list(pairs["item"])}
        answer = server.client.post("/predict", json=body).json()
        found["HTTP predict"] = np.array([answer["scores"][name] for name in tasks]).T
        alone = [  # another way through the service than pairs that come together
            server.client.post("/predict", json={"users": [user], "items": [item]}).json()["scores"]
            for user, item in zip(body["users"], body["items"], strict=True)
        ]
        found["HTTP, pair by pair"] = np.array([[s[name][0] for name in tasks] for s in alone])
        asked = {"users": users, "k": K}
        lists = server.client.post("/recommend", json=asked).json()["rankings"]
        items = [entry for ranking in lists for entry in ranking["items"]]
        assert [entry["item"] for entry in items] == list(pairs["item"])
        found["HTTP recommend"] = np.array([[e["scores"][name] for name in tasks] for e in items])

    for way, values in found.items():
        np.testing.assert_allclose(values, pairs[tasks], atol=TOLERANCE, rtol=0, err_msg=way)
