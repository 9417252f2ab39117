"""The bilinear term, from training to every way to a score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recsys_moe.artifact.graph_formats import FORMATS
from recsys_moe.artifact.graphs import write_graphs
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.inference.predictor import ColdUser, Predictor
from recsys_moe.kinds import KINDS
from recsys_moe.model.request import Request
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL
from tests.features import with_features

MAPS = {"bilinear_diagonal": False}
BOTH = {"features": "all", "item_bag": "items", "bag_dim": 4}


def config(model: dict[str, Any]) -> Config:
    settings = {**TINY_MODEL, "bilinear_rank": 3, **model}
    trainer = {"max_epochs": 2, "batch_size": 64}
    return parse_config({"model": settings, "trainer": trainer, "optim": {"lr": 0.01}})


@pytest.fixture(
    scope="module", params=["ids", "features and history", "no maps and no user and item biases"]
)
def trained(
    request: Any, prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("bilinear")
    data = with_features(prepared, folder / "data")
    more: dict[str, dict[str, Any]] = {
        "ids": {},
        "features and history": BOTH,
        "no maps and no user and item biases": {
            **{**BOTH, "bag_dim": 0, "user_bag": "ratings"},
            **{"bilinear_diagonal": True, "biases": False},
        },
    }
    fit(config(more[request.param]), data, folder / "run")
    return folder / "run", request.param


@pytest.mark.slow
def test_predict_recommend_and_exports_agree(trained: tuple[Path, str], tmp_path: Path) -> None:
    """Known users and items and the OOV user; the term is more than 1e-2."""
    run, _ = trained
    artifact, predictor = load_artifact(run), Predictor.load(run)
    model = artifact.model
    assert {name for name in load_file(run / "model/weights.safetensors") if "bilinear" in name}
    users = [*artifact.users["user"].to_pylist()[:3], "nobody"]
    items = artifact.items["item"].to_pylist()
    user_B = predictor.users.index(users)[0].repeat_interleave(len(items))
    item_B = torch.arange(len(items)).repeat(len(users))
    request = Request(user_B, item_B)
    with torch.inference_mode():
        logits_BT = model(request).logits_BT
        term_BT = model.bilinear(model.encode(request))
    assert term_BT.abs().max() > 1e-2
    expected = {
        task.name: KINDS[task.kind].link(logits_BT[:, t]).view(len(users), -1)
        for t, task in enumerate(artifact.schema.tasks)
    }
    names = [user for user in users for _ in items]
    scores = predictor.score(names, items * len(users)).tasks
    for task, scores_UN in expected.items():
        torch.testing.assert_close(scores[task].view_as(scores_UN), scores_UN, atol=1e-5, rtol=0)
        for row, ranking in enumerate(predictor.recommend(users, len(items), score=task)):
            assert len(ranking) == len(items)
            for entry in ranking:
                score = float(scores_UN[row, items.index(entry.item)])
                assert entry.scores[task] == pytest.approx(score, abs=1e-5)
    list(write_graphs(artifact, tmp_path, ["pt2", "onnx"], lambda step: None))
    columns_BT = torch.stack([scores_UN.flatten() for scores_UN in expected.values()], dim=1)
    for name in ("pt2", "onnx"):
        found_BT = FORMATS[name].load(tmp_path / FORMATS[name].file)(user_B, item_B)[0]
        torch.testing.assert_close(found_BT, columns_BT, atol=1e-5, rtol=0)


def test_training_goes_on_from_it(
    trained: tuple[Path, str], featured: Path, tmp_path: Path
) -> None:
    run, _ = trained
    with pytest.raises(ConfigError, match=r"model\.bilinear_rank .*got 0"):
        fit({"model": {"bilinear_rank": 0, **MAPS}}, featured, tmp_path / "next", init_from=run)
    assert fit({"trainer": {"max_epochs": 1}}, featured, tmp_path / "next", init_from=run)["loss"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"bilinear_rank": 0, "bilinear_diagonal": True}, "bilinear_diagonal must be false .*rank"),
        ({"bilinear_rank": 999}, r"bilinear_rank must be at most model\.embedding_dim=8"),
    ],
)
def test_impossible_bilinear_terms_are_refused(model: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(model)


@pytest.mark.parametrize(
    "trained", ["features and history", "no maps and no user and item biases"], indirect=True
)
def test_a_cold_start_user_has_the_same_term_in_rankings_as_in_scores(
    trained: tuple[Path, str],
) -> None:
    predictor = Predictor.load(trained[0])
    items = predictor.items.ids.to_pylist()
    cold_user = ColdUser({}, {items[0]: None, items[3]: None})
    ranked = predictor.recommend([cold_user, predictor.users.ids[0].as_py()], k=len(items))[0]
    scores = predictor.score([cold_user] * len(items), [one.item for one in ranked]).tasks
    for name, values in scores.items():
        torch.testing.assert_close(
            torch.tensor([one.scores[name] for one in ranked]),
            torch.as_tensor(values).to(torch.float32),
            rtol=0,
            atol=1e-5,
        )
