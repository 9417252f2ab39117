"""Features and bags in training: what changes with them, what does not, and one score."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.export import export
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.build import build_model
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.columns import load_columns
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.ranking.item_filters import filter_columns
from recsys_moe.model.request import Request
from recsys_moe.schema import FeatureColumn, Schema
from recsys_moe.train.fit import dry_run, fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL
from tests.features import with_features
from tests.train.test_resume import STEP, VALIDATION, fit_in_pieces, results

HISTORIES = {"item_bag": "ratings", "user_bag": "ratings", "bag_dim": 4}
BOTH = {"features": "all", **HISTORIES}
SLOPED = {**BOTH, "bag_ratings": "linear"}
HOUR = FeatureColumn(name="hour", kind="categorical", size=24)


def config(model: dict[str, Any], **sections: Any) -> Config:
    trainer = {"max_epochs": 2, "batch_size": 64, **sections.pop("trainer", {})}
    return parse_config({"model": {**TINY_MODEL, **model}, "trainer": trainer, **sections})


@pytest.fixture(scope="module")
def data(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_features(prepared, tmp_path_factory.mktemp("features") / "data")


@pytest.fixture(scope="module", params=[BOTH, SLOPED], ids=["levels", "slopes"])
def model(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture(scope="module")
def trained(data: Path, model: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    fit(config(model), data, out)
    return out


def started(data: Path, model: dict[str, Any]) -> RecModule:
    """A module at the beginning of training."""
    datamodule = RecDataModule(data, config(model))
    module = RecModule(config(model).model_dump(mode="json"), datamodule.schema.to_json())
    module.start_encoders(data, datamodule.rows("train"))
    return module


def test_training_starts_as_without_features_and_bags(data: Path, model: dict[str, Any]) -> None:
    """The same random numbers for all that both models have, and the same logits."""
    ids, both = (started(data, one).model.eval() for one in ({}, model))
    own, other = ids.state_dict(), both.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in own.items())
    assert other.keys() - own.keys() == {f"encoders.{name}" for name in learned(model)}
    request = Request(torch.arange(30), torch.arange(30))
    assert torch.equal(ids(request).logits_BT, both(request).logits_BT)


def test_both_are_learned_and_scores_are_the_same_everywhere(
    trained: Path, model: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    """evaluate, Predictor, predict, recommend, an export and the model that was trained."""
    state = torch.load(trained / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    module = started(data, model)
    module.load_state_dict(state)
    own = module.model.state_dict()
    assert all(own[f"encoders.{name}"].abs().max() > 1e-4 for name in learned(model))
    rows = load_columns(data, module.schema, "test")
    predictor = Predictor.load(trained)
    users, items = (predictor.artifact.users["user"], predictor.artifact.items["item"])
    pairs = [users.take(rows.user.tolist()).to_pylist(), items.take(rows.item.tolist()).to_pylist()]
    with torch.inference_mode():
        logits_BT = module.model.eval()(rows.request).logits_BT
    expected = {"watch": logits_BT[:, 0].sigmoid(), "rating": logits_BT[:, 1]}
    export(trained, tmp_path / "copy")
    assert not any(":" in name for name in filter_columns(predictor.artifact.items))
    for one in (predictor, Predictor.load(tmp_path / "copy")):
        for task, score_B in one.score(*pairs).tasks.items():
            torch.testing.assert_close(score_B, expected[task], atol=1e-5, rtol=0)
    first = predictor.recommend([pairs[0][0]], 40)[0]
    by_item = {entry.item: entry.scores["watch"] for entry in first}
    assert by_item[pairs[1][0]] == pytest.approx(float(expected["watch"][0]), abs=1e-5)
    file = tmp_path / "pairs.csv"
    file.write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in zip(*pairs, strict=True)))
    predict_file(predictor, file, tmp_path / "scores.parquet")
    written = torch.tensor(pq.read_table(tmp_path / "scores.parquet")["rating"].to_pylist())
    torch.testing.assert_close(written, expected["rating"], atol=1e-5, rtol=0)
    mse = float((expected["rating"] - rows.labels[:, 1]).square().nanmean())
    assert evaluate_artifact(trained, "test", data)["tasks"]["rating"]["mse"] == pytest.approx(mse)


def encoders(*tables: str) -> list[str]:
    names = ["kernel_DW", *(tables or ["table_RW"])]
    histories = [f"{history}.{name}" for history in ("item_bag", "user_bag") for name in names]
    return [*histories, "items.table_RD", "users.table_RD"]


def learned(model: dict[str, Any]) -> list[str]:
    return encoders("base_JW", "slope_JW") if model == SLOPED else encoders()


def test_the_artifact_holds_complete_vectors_and_what_new_ones_need(
    trained: Path, data: Path
) -> None:
    folder = trained / "model"
    weights = load_file(folder / "weights.safetensors")
    assert weights.keys() == started(data, {}).model.state_dict().keys()
    assert sorted(load_file(folder / "encoders.safetensors")) == sorted(encoders())
    assert (folder / "features.parquet").read_bytes() == (data / "features.parquet").read_bytes()
    artifact = load_artifact(folder)
    made = started(data, BOTH).model.encoders
    assert made is not None
    made.load_state_dict(artifact.encoders)
    state = torch.load(trained / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    parts = ("user", made.users, made.item_bag), ("item", made.items, made.user_bag)
    for entity, part, history in parts:
        rows_BD = state[f"model.{entity}_embedding.weight"]
        index_B = torch.arange(len(rows_BD))
        more_BD = part.of_entities(index_B) + history.of_entities(index_B)
        torch.testing.assert_close(rows_BD + more_BD, weights[f"{entity}_embedding.weight"])
    (folder / "encoders.safetensors").rename(folder / "gone")
    with pytest.raises(DataError, match=r"encoders\.safetensors is missing"):
        load_artifact(folder)
    (folder / "gone").rename(folder / "encoders.safetensors")


@pytest.mark.parametrize("history", ["items", "ratings"])
def test_settings_of_the_optimizer_work_with_both(history: str, data: Path, tmp_path: Path) -> None:
    model = {**BOTH, "item_bag": history, "user_bag": {"items": "users"}.get(history, history)}
    settings = config(model, optim={"weight_decay": 1e-4, "ema_decay": 0.9})
    assert fit(settings, data, tmp_path / "run")["loss"] < 1.2
    assert dry_run(settings, data, tmp_path / "dry")["loss_of_first_batch"] > 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"features": "genre"}, "must .*got 'genre'"),
        ({"features": ["age", "age"]}, "features .*different"),
        ({"features": []}, "features .*different"),
        ({"item_bag": "users"}, "Input should be 'none', 'items' or 'ratings'|item_bag"),
        ({"user_bag": "items"}, "Input should be 'none', 'users' or 'ratings'|user_bag"),
        ({"bag_dropout": 1.0}, "bag_dropout"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    model: dict[str, Any], message: str, data: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(config(model), Schema.load(data))


def test_data_without_features_or_ratings_are_refused(prepared: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match="features .*none .*without"):
        build_model(config({"features": "all"}), Schema.load(prepared))
    for folder in (prepared, data):
        schema = replace(Schema.load(folder), context_features=(HOUR,))
        with pytest.raises(ConfigError, match="users .*got 'hour'"):
            build_model(config({"features": "hour"}), schema)
    schema = Schema.load(prepared)
    object.__setattr__(schema, "tasks", schema.tasks[:1])
    with pytest.raises(ConfigError, match="item_bag .*none or items .*regression"):
        build_model(config({"item_bag": "ratings"}), schema)
    with pytest.raises(ConfigError, match="user_bag .*none or users .*regression"):
        build_model(config({"user_bag": "ratings"}), schema)


def test_half_of_the_hidden_ids_keep_features_and_bag(data: Path) -> None:
    """~i stands for the OOV id with what is known of i."""
    one, none = ({"id_dropout": rate, "features_only_rate": 0} for rate in (0.5, 0))
    batch = next(iter(RecDataModule(data, config(BOTH, data=one)).train_batches(0)))
    shown = next(iter(RecDataModule(data, config(BOTH, data=none)).train_batches(0)))
    for index_B, one_B, unseen in ((batch.user, shown.user, 60), (batch.item, shown.item, 40)):
        kept_B, gone_B = index_B < 0, index_B == unseen
        assert kept_B.any() and gone_B.any()  # about 16 of 64 each
        assert torch.equal(~index_B[kept_B], one_B[kept_B])
    model = started(data, BOTH).model.eval()
    torch.nn.init.normal_(model.encoders.users.table_RD)  # type: ignore[union-attr]
    index_B, none_B = torch.arange(1, 40), torch.full((39,), 60)
    features_BD = model.encoders("user", Request(index_B, index_B))  # type: ignore[misc]
    x_BD = model.encode(Request(~index_B, ~index_B))[:, :8]
    torch.testing.assert_close(x_BD, model.user_embedding(none_B) + features_BD)


def test_ids_of_an_entity_with_features_are_hidden_in_a_share_of_the_rows(data: Path) -> None:
    """Features of items alone: no user is hidden. Of 0.3 of the rows, those in both runs."""
    rows = {}
    for rate in (0.0, 0.3):
        settings = config(
            {"features": "genres"}, data={"id_dropout": 0, "features_only_rate": rate}
        )
        batches = [*RecDataModule(data, settings).train_batches(0)]
        rows[rate] = [torch.cat([batch[entity] for batch in batches]) for entity in (0, 1)]
    (user_N, item_N), (other_N, hidden_N) = rows[0.0], rows[0.3]
    assert torch.equal(user_N, other_N)
    is_hidden_N = hidden_N < 0
    assert 0.25 < is_hidden_N.float().mean() < 0.35  # of some 1,500 rows, 4 deviations of 0.012
    assert torch.equal(torch.where(is_hidden_N, ~hidden_N, hidden_N), item_N)


def test_without_features_the_rate_changes_nothing(data: Path) -> None:
    for model in ({}, HISTORIES):
        batches = [
            [*RecDataModule(data, config(model, data={"features_only_rate": r})).train_batches(0)]
            for r in (0.0, 0.5)
        ]
        for one, other in zip(*batches, strict=True):
            assert torch.equal(one.user, other.user) and torch.equal(one.item, other.item)


def test_a_run_with_both_in_pieces_ends_in_the_same_bytes(
    data: Path,
    model: dict[str, Any],
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stops = [(STEP, 17), (VALIDATION, 1)]
    fit_in_pieces(monkeypatch, config(model), data, tmp_path / "run", stops)
    assert results(tmp_path / "run") == results(trained)
