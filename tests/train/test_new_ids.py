"""Cold-start metrics that `fit` reports: those of scoring every row with a ColdUser."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from recsys_moe.config.settings import parse_config
from recsys_moe.data.columns import load_columns
from recsys_moe.inference.predictor import ColdUser, Predictor
from recsys_moe.kinds.curves import exact_auc
from recsys_moe.schema import Schema
from recsys_moe.train import new_ids
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL


def raw_features(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Per entity and index what a cold-start user would be told; not jobs, of which some are
    unseen."""
    told: dict[str, list[dict[str, Any]]] = {}
    for entity, features in (("user", ("age",)), ("item", ("genres", "year"))):
        rows = pq.read_table(data / f"{entity}s.parquet").to_pylist()
        told[entity] = [
            {name: raw(name, row[f"feature:{name}"]) for name in features} for row in rows
        ]
    return told


def raw(name: str, value: Any) -> Any:
    if value is None:
        return None
    numbers = {"age": lambda v: 30 + 10 * v, "year": lambda v: 1990 + 5 * v}
    return numbers[name](value) if name in numbers else [f"genre {one}" for one in value]


@pytest.mark.parametrize("model_has", [{}, {"item_bag": "ratings", "user_bag": "ratings"}])
def test_the_metrics_are_those_of_cold_start_ids_with_their_features(
    featured: Path, tmp_path: Path, model_has: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """With bags as well: a new id has none."""
    model = {**TINY_MODEL, "features": ["age", "genres", "year"], **model_has}
    trainer = {"max_epochs": 2, "batch_size": 64}
    with caplog.at_level(logging.INFO, "recsys_moe.fit"):
        result = fit(parse_config({"model": model, "trainer": trainer}), featured, tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "evaluation" / "val.json").read_text())
    assert kept["new_ids"] == result["new_ids"] and set(kept["new_ids"]) == {"user", "item"}
    predictor, schema = Predictor.load(tmp_path / "run"), Schema.load(featured)
    rows, told = load_columns(featured, schema, "val"), raw_features(featured)
    ids = {
        entity: pq.read_table(featured / f"{entity}s.parquet")[entity].to_pylist()
        for entity in ("user", "item")
    }
    for entity in ("user", "item"):
        for way in new_ids.WAYS:
            pairs: dict[str, list[Any]] = {}
            for one, index_N in (("user", rows.user), ("item", rows.item)):
                known = [ids[one][i] for i in index_N.tolist()]
                new = [
                    ColdUser(told[one][i] if way == "with_features" else {})
                    for i in index_N.tolist()
                ]
                pairs[one] = new if one == entity else known
            scores = predictor.score(pairs["user"], pairs["item"]).tasks
            found = result["new_ids"][entity]
            auc = exact_auc(scores["watch"], rows.labels[:, 0])
            assert found["watch"][way] == pytest.approx(auc, abs=2e-3)
            mse = float((scores["rating"] - rows.labels[:, 1]).square().nanmean())
            assert found["rating"][way] == pytest.approx(mse, abs=1e-5)
    lines = [one.message for one in caplog.records if one.message.startswith("new ")]
    assert [line.split(":")[0] for line in lines] == ["new users", "new items"]
    assert f"{result['new_ids']['item']['watch']['without']:.4f} without" in lines[1]


def test_a_model_without_features_says_nothing(run: Path) -> None:
    assert "new_ids" not in json.loads((run / "evaluation" / "val.json").read_text())


def test_the_model_is_left_as_it_was(featured: Path) -> None:
    from recsys_moe.train.loader import RecDataModule
    from recsys_moe.train.module import RecModule

    config = parse_config({"model": {**TINY_MODEL, "features": "all"}})
    datamodule = RecDataModule(featured, config)
    module = RecModule(config.model_dump(mode="json"), datamodule.schema.to_json())
    module.start_encoders(featured, datamodule.rows("train"))
    module.start_biases(datamodule.rows("train"))
    before = {name: value.clone() for name, value in module.model.state_dict().items()}
    new_ids.compare_new_ids(module.model, module.model.encoders, datamodule)
    after = module.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize(
    ("metric", "told", "level"),
    [("auc", 0.61, "INFO"), ("auc", 0.59, "INFO"), ("auc", 0.53, "WARNING")]
    + [("mse", 0.53, "INFO"), ("mse", 0.65, "INFO"), ("mse", 0.67, "WARNING")],
)
def test_features_that_hurt_beyond_chance_are_warned_of(
    caplog: pytest.LogCaptureFixture, metric: str, told: float, level: str
) -> None:
    """0.6 without and 100 rows: 0.6 / sqrt(100) = 0.06 is chance."""
    one = {"metric": metric, "rows": 100, "with_features": told, "without": 0.6}
    with caplog.at_level(logging.INFO, "recsys_moe.fit"):
        new_ids._say("item", {"watch": one})
    [record] = caplog.records
    assert record.levelname == level and f"{told:.4f}" in record.message
