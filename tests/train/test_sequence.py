"""Models that read the events before a row, from training to a served list."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.export import export
from recsys_moe.config.settings import parse_config
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.rows import Columns
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.inference.predictor import Predictor
from recsys_moe.model.encoders.mixers import MIXERS
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from tests.conftest import SEQUENCE_MODEL, TINY_MODEL
from tests.train.processes.test_encoder_devices import fit_on_two


def config(**sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {**TINY_MODEL, **SEQUENCE_MODEL},
        "data": {"tie_rule": "log"},
        "optim": {"lr": 0.01},
        "trainer": {"max_epochs": 1, "batch_size": 128, "logger": "csv"},
    }
    return {name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}}


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
def test_order_is_learned_where_only_order_tells(timed: Path, tmp_path: Path, mixer: str) -> None:
    """Nine of ten next items are the third item after the last: popularity cannot know."""
    changes = {
        "model": {"sequence": mixer, "embedding_dim": 16, "bilinear_rank": 16},
        "trainer": {"max_epochs": 15, "patience": 15, "monitor": "watch/auc"},
        "optim": {"lr": 0.02},
    }
    fit(parse_config(config(**changes)), timed, tmp_path / "run")
    found = evaluate_ranking(tmp_path / "run", "val", k=5)
    assert found["ndcg"] > 2 * found["baselines"]["popularity"]["ndcg"]


def test_a_run_is_evaluated_on_the_events_before_each_row(timed_run: Path) -> None:
    """What `fit` found on validation, `evaluate` finds on the model folder."""
    found = json.loads((timed_run / "evaluation" / "val.json").read_text())
    again = evaluate_artifact(timed_run / "model", "val", timed_run_data(timed_run))
    assert found["loss"] == pytest.approx(again["loss"], abs=1e-6)


def timed_run_data(run: Path) -> Path:
    return Path(json.loads((run / "data.lock.json").read_text())["folder"])


def test_a_saved_model_scores_with_the_training_events_of_its_users(timed_run: Path) -> None:
    predictor = Predictor.load(timed_run)
    users, items = predictor.artifact.users["user"].to_pylist(), ["i3", "i4"]
    known = predictor.score([users[0]] * 2, items).tasks["watch"]
    emptied = Predictor.load(timed_run)
    assert emptied.artifact.events is not None
    emptied.artifact.events["item"].fill_(0)
    assert not torch.equal(known, emptied.score([users[0]] * 2, items).tasks["watch"])


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        ({"model": {"bilinear_rank": 0, "bilinear_diagonal": False}}, "timed", "bilinear_rank=8"),
        ({}, "prepared", "--protocol time or leave-last"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    changes: dict[str, Any],
    data: str,
    message: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(parse_config(config(**changes)), request.getfixturevalue(data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_resuming_inside_an_epoch_ends_with_the_same_weights(timed: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    whole = {"trainer": {"max_epochs": 2}}
    fit(parse_config(config(**whole)), timed, tmp_path / "whole")
    fit(parse_config(config(trainer={"max_epochs": 1})), timed, tmp_path / "parts")
    fit(parse_config(config(**whole)), timed, tmp_path / "parts", resume="auto")
    one, two = (load_file(tmp_path / n / "model/weights.safetensors") for n in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in one)


BEST = {
    "model": {"item_bag": "ratings", "bag_dim": 0, "bag_ratings": "linear", "user_bag": "ratings"},
    "data": {"resample_negatives": True, "popularity_exponent": 0.5, "user_exponent": 0.5},
    "optim": {"schedule": "cosine", "ema_decay": 0.9},
}


@pytest.mark.slow
@pytest.mark.parametrize("buffer", ["auto", 300], ids=["memory", "disk"])
def test_the_best_recipe_takes_a_sequence_from_memory_and_from_disk(
    timed: Path, tmp_path: Path, buffer: str | int
) -> None:
    data = {**BEST["data"], "shuffle_buffer": buffer, "max_memory_mb": 1}
    out = tmp_path / "run"
    result = fit(parse_config(config(**{**BEST, "data": data})), timed, out)
    assert math.isfinite(result["loss"])  # one epoch: that it learns is shown above
    scores = Predictor.load(out).score(["u1", "nobody"], ["i3", "i3"])
    assert torch.isfinite(scores.tasks["rating"]).all()


@pytest.mark.slow
def test_two_towers_read_events_as_well(timed: Path, tmp_path: Path) -> None:
    model = {"name": "two_tower", "embedding_dim": 8, "sequence": "gru", "next_item_weight": 1.0}
    sections = {**config(), "model": model}
    fit(parse_config(sections), timed, tmp_path / "run")
    lists = Predictor.load(tmp_path / "run").recommend(["u1"], 3)
    assert len(lists[0]) == 3


@pytest.mark.slow
def test_two_devices_train_a_sequence_nearly_as_one_does(timed: Path, tmp_path: Path) -> None:
    """Each device draws for itself, and reads a stretch that a batch cuts from its own window."""
    asked = config(trainer={"max_epochs": 2})
    one = fit(parse_config(asked), timed, tmp_path / "one")
    fit_on_two(timed, tmp_path / "two", asked)
    two = evaluate_artifact(tmp_path / "two", "val", timed)
    assert two["loss"] == pytest.approx(one["loss"], rel=0.1)


def test_a_model_without_user_ids_scores_known_and_new_users_of_equal_events_alike(
    timed: Path, tmp_path: Path
) -> None:
    """And its saved model scores as the trained one did on validation."""
    model = {"user_ids": False, "biases": False}
    found = fit(parse_config(config(model=model)), timed, tmp_path / "run")
    again = evaluate_artifact(tmp_path / "run", "val", timed)
    assert again["loss"] == pytest.approx(found["loss"], abs=1e-6)
    logged = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    columns = dict(zip(logged[0].split(","), logged[1].split(","), strict=True))
    assert float(columns["val/loss"]) == pytest.approx(found["loss"], abs=1e-5)
    predictor = Predictor.load(tmp_path / "run")
    nobody = predictor.artifact.schema.user.size
    pairs = torch.tensor([0, 1, nobody]), torch.zeros(3, dtype=torch.long)
    logits_NT = predictor.pair_logits(*pairs)  # without events
    assert torch.equal(logits_NT[0], logits_NT[1]) and torch.equal(logits_NT[0], logits_NT[2])


def test_user_ids_are_left_out_with_biases_only() -> None:
    with pytest.raises(ConfigError, match="model.biases must be false with model.user_ids=false"):
        parse_config(config(model={"user_ids": False}))


def test_an_exported_folder_keeps_the_events_of_its_users(timed_run: Path, tmp_path: Path) -> None:
    export(timed_run, tmp_path / "out")
    before, after = Predictor.load(timed_run), Predictor.load(tmp_path / "out")
    assert before.recommend(["u1", "u2"], 5) == after.recommend(["u1", "u2"], 5)
    (tmp_path / "out" / "events.safetensors").unlink()
    with pytest.raises(DataError, match=r"events.safetensors is missing"):
        Predictor.load(tmp_path / "out")


def test_training_rows_read_no_event_of_another_split_however_the_rows_were_split(
    timed: Path,
) -> None:
    """Of a random split, too: training has a log of its own."""
    data = RecDataModule(timed, parse_config(config()))
    logs = []
    for split in ("train", "val"):
        rows = data.rows(split)
        assert isinstance(rows, Columns) and rows.timelines is not None
        logs.append(rows.timelines.log)
    assert len(logs[0]) == data.schema.labels["train"]["watch"]["positive"] < len(logs[1])


def test_the_loss_of_the_next_item_does_not_look_into_the_users_of_the_item(timed: Path) -> None:
    """In its item's bag a row's own user would give the item away: without the bag's table the
    loss is the same."""
    made = RecModule(config(model={"user_bag": "users", "bag_dim": 0}))
    data = RecDataModule(timed, made.config)
    made.set_up(data)
    assert made.next_item is not None and made.model.encoders is not None
    batch, losses = next(iter(data.train_batches(0))), []
    output = made.model(batch.request)
    for std in (0.0, 1.0):
        torch.nn.init.normal_(made.model.encoders.user_bag.table_RW, std=std)
        losses.append(made.next_item(made.model, output, batch, 0).detach())
    assert torch.equal(*losses)


def test_rows_of_validation_come_user_after_user_and_share_windows(
    timed: Path,
) -> None:
    """Each of them once, with its own labels; fewer events are encoded than in the file's order."""
    few = {"eval_batch_size": 32, "batchwise_rows": 32}
    data = RecDataModule(timed, parse_config(config(data=few)))
    shared = list(data.val_dataloader())
    exact = list(EvalBatches(data.rows("val"), data.config.eval_rows))
    names = ("user", "item", "labels")
    one, other = (
        [torch.cat([getattr(batch, name) for batch in batches]) for name in names]
        for batches in (shared, exact)
    )
    rows = [
        sorted(map(repr, zip(*(x.tolist() for x in columns), strict=True)))
        for columns in (one, other)
    ]
    assert rows[0] == rows[1]
    assert (
        len(one[0].unique_consecutive())
        == len(one[0].unique())
        < len(other[0].unique_consecutive())
    )
    encoded = [sum(batch.events.item.numel() for batch in batches) for batches in (shared, exact)]
    assert encoded[0] < encoded[1]
