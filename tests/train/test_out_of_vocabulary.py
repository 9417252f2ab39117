"""Ids without a training row have an index, features and lists of their own, and the OOV row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from data_prep import table
from recsys_moe import Predictor
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.columns import load_columns
from recsys_moe.data.negatives import ResampledNegatives
from recsys_moe.errors import DataError
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.model.request import Request
from recsys_moe.schema import SCHEMA_FILE, SPLITS, Schema
from recsys_moe.train.encoders import finish
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL

USERS, ITEMS, NEW = 24, 18, 6
"""In training, and as many users and items that come after it."""
EVERYTHING = {"features": "all", "item_bag": "items", "user_bag": "users", "biases": True}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every user has 8 items; then the same of new users, and some new items, after the cuts."""
    folder = tmp_path_factory.mktemp("late")
    rng = np.random.default_rng(0)
    early = [(u, i) for u in range(USERS) for i in rng.permutation(ITEMS)[:8]]
    late = [(USERS + u, i) for u in range(NEW) for i in rng.permutation(ITEMS + NEW)[:8]]
    order = [*rng.permutation(len(early)), *(len(early) + rng.permutation(len(late)))]
    rows = [(early + late)[n] for n in order]
    log = pd.DataFrame(rows, columns=["user", "item"])
    log["when"] = 1_000 + np.arange(len(log))
    log["stars"] = 1 + (log.user * 7 + log.item * 3) % 5
    about = {
        "user": pd.DataFrame({"user": range(USERS + NEW), "age": np.arange(USERS + NEW) % 5}),
        "item": pd.DataFrame({"item": range(ITEMS + NEW), "genre": np.arange(ITEMS + NEW) % 3}),
    }
    for name, rows_of in (("log", log), *about.items()):
        rows_of.to_csv(folder / f"{name}.csv", index=False)
    table.prepare(
        folder / "data",
        input=folder / "log.csv",
        user="user",
        item="item",
        tasks=["watch:binary", "stars:regression=stars"],
        timestamp="when",
        negatives="per-user",
        protocol="time",
        fractions="0.8,0.1,0.1",
        user_features=folder / "user.csv",
        user_feature=["age:categorical=age"],
        item_features=folder / "item.csv",
        item_feature=["genre:categorical=genre"],
    )
    return folder / "data"


def config(**sections: Any) -> Config:
    model = {**TINY_MODEL, **sections.pop("model", {})}
    trainer = {"max_epochs": 1, "batch_size": 64}
    return parse_config({"model": model, "trainer": trainer, **sections})


def test_the_folder_has_ids_beyond_the_vocabulary(data: Path) -> None:
    schema = Schema.load(data)
    assert (schema.user.trained, schema.user.size) == (USERS, USERS + NEW)
    assert schema.item.trained == ITEMS < schema.item.size
    assert Schema.from_json(schema.to_json()) == schema


def learned(data: Path, settings: Config) -> RecModule:
    """A module with parameters that are all different."""
    datamodule = RecDataModule(data, settings)
    module = RecModule(settings)
    module.set_up(datamodule)
    torch.manual_seed(1)
    for values in module.model.parameters():
        values.data.copy_(torch.randn_like(values) / 4)
    return module


def every_pair(schema: Schema) -> Request:
    pairs = torch.cartesian_prod(*(torch.arange(n.size + 1) for n in (schema.user, schema.item)))
    return Request(*pairs.int().unbind(1))


@pytest.mark.parametrize("name", ["mtmoe", "two_tower"])
@pytest.mark.parametrize("parts", [{}, {"biases": True}, EVERYTHING], ids=["ids", "bias", "all"])
def test_a_finished_model_scores_every_pair_as_in_training(
    name: str, parts: dict[str, Any], data: Path
) -> None:
    sizes: dict[str, Any] = {"name": name, "tower_dims": [8]}
    if name == "mtmoe":
        sizes = {**TINY_MODEL, "router": {"name": "hash"}}  # experts by user
    settings = parse_config({"model": {**sizes, **parts}})
    module = learned(data, settings)
    model, schema = module.model.eval(), module.schema
    assert [table.num_embeddings for table in model.tables] == [USERS + 1, ITEMS + 1]
    asked = every_pair(schema)
    before = model(asked).logits_BT
    finished, _ = finish(model, settings, schema, module.trained)
    assert finished.user_embedding.num_embeddings == schema.user.size + 1
    torch.testing.assert_close(finished.eval()(asked).logits_BT, before)


def test_they_differ_by_their_features_alone(data: Path) -> None:
    vectors = {}
    for parts in ({}, EVERYTHING):
        module = learned(data, config(model=parts))
        users = torch.arange(USERS, USERS + NEW + 1).int()
        with torch.no_grad():
            vectors["features" in parts] = module.model.eval().encode_users(
                Request(users, torch.zeros_like(users))
            )
    assert len(vectors[False].unique(dim=0)) == 1  # the OOV row
    ages = torch.arange(USERS, USERS + NEW) % 5
    for one, age in zip(vectors[True], ages, strict=False):
        same = [torch.allclose(one, other) for other in vectors[True][:-1]]
        assert same == (ages == age).tolist()
        assert not torch.allclose(one, vectors[True][-1])  # that of an unknown id: no features


def test_new_users_have_lists_and_metrics_and_are_flagged(data: Path, tmp_path: Path) -> None:
    fit(config(model=EVERYTHING), data, tmp_path / "run")
    found = evaluate_ranking(tmp_path / "run", "test", data=data, k=5)
    assert found["relevant_of_unknown_users"] == 0
    test = pq.read_table(data / "test").to_pandas()
    assert found["users"] == test.loc[test.watch == 1, "user_index"].nunique()
    predictor = Predictor.load(tmp_path / "run")
    scores = predictor.score([0, USERS, USERS + 1], [0, 0, 0])
    assert scores.unseen_user.tolist() == [False, True, True]
    assert predictor.score([USERS + NEW + 9], [0]).unseen_user.all()


def test_resampled_negatives_are_of_the_vocabulary(data: Path) -> None:
    schema = Schema.load(data)
    rows = load_columns(data, schema, "train")
    for power in (0.0, 0.75):
        drawn = ResampledNegatives(rows, schema, power)
        items = [drawn.drawn(rows, seed).item for seed in range(20)]
        assert {int(item.max()) for item in items} == {ITEMS - 1}


def test_training_rows_out_of_the_vocabulary_are_refused(data: Path, tmp_path: Path) -> None:
    raw = json.loads((data / SCHEMA_FILE).read_text())
    raw["user"]["trained"] = USERS - 2
    schema = Schema.from_json(json.dumps(raw))
    with pytest.raises(DataError, match=rf"indices must be in 0\.\.{USERS - 2}"):
        load_columns(data, schema, "train")
    raw["user"]["trained"] = USERS + NEW + 1
    with pytest.raises(DataError, match=r"user\.trained must be in 0\.\.30, got 31"):
        Schema.from_json(json.dumps(raw))


def as_older(data: Path, out: Path) -> Path:
    """The folder as version 0.1 wrote it: ids without a training row share the index `size`."""
    raw = json.loads((data / SCHEMA_FILE).read_text())
    trained = {name: raw[name].pop("trained") for name in ("user", "item")}
    out.mkdir()
    for name, size in trained.items():
        raw[name]["size"] = size
        pq.write_table(pq.read_table(data / f"{name}s.parquet")[:size], out / f"{name}s.parquet")
    for split in SPLITS:
        rows = pq.read_table(data / split).drop_columns(["event"])
        for place, (name, size) in enumerate(trained.items()):
            index = pc.min_element_wise(rows[f"{name}_index"], pa.scalar(size, pa.int32()))
            rows = rows.set_column(place, f"{name}_index", index)
        (out / split).mkdir()
        pq.write_table(rows, out / split / "part-00000.parquet")
    (out / "features.parquet").write_bytes((data / "features.parquet").read_bytes())
    del raw["events"]
    (out / SCHEMA_FILE).write_text(json.dumps(raw))
    return out


@pytest.mark.parametrize("resample", [False, True])
def test_training_is_that_on_an_older_folder(resample: bool, data: Path, tmp_path: Path) -> None:
    """Bit by bit, without features: what the ids of later rows are does not matter to it."""
    settings = config(data={"resample_negatives": resample}, model={"item_bag": "items"})
    found = []
    for folder in (data, as_older(data, tmp_path / "older")):
        fit(settings, folder, tmp_path / f"run-{folder.name}")
        found.append((tmp_path / f"run-{folder.name}" / "metrics.csv").read_text())
    assert found[0] == found[1]


def test_a_warm_start_matches_the_ids_of_the_vocabulary(data: Path, tmp_path: Path) -> None:
    fit(config(model=EVERYTHING), data, tmp_path / "run")
    again = config(model=EVERYTHING, optim={"lr": 1e-12})
    fit(again, data, tmp_path / "again", init_from=tmp_path / "run")
    asked = every_pair(Schema.load(data))
    first, second = (Predictor.load(tmp_path / n).artifact.model for n in ("run", "again"))
    torch.testing.assert_close(
        second(asked).logits_BT, first(asked).logits_BT, rtol=1e-4, atol=1e-5
    )
