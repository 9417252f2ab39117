"""Automatic settings of logs whose order is kept: a model that reads it, where that can help."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.cli.configuration import resolve_with_choices
from recsys_moe.config.auto import KEYS, say, with_choices
from recsys_moe.config.auto_order import new_rows
from recsys_moe.config.build import build_model
from recsys_moe.config.diff import differences, read_resolved
from recsys_moe.config.settings import parse_config
from recsys_moe.schema import Schema, Task
from recsys_moe.train.next_item import build_next_item
from tests.config.test_auto import chosen, schema_of
from tests.conftest import SEQUENCE_MODEL, TINY_MODEL, Command


def in_time(
    rows: int = 157_484,
    sizes: tuple[int, int] = (943, 1682),
    *,
    trained: int = 742,
    later: int = 21_250,
    **more: Any,
) -> Schema:
    """By default MovieLens-100K with its newest tenth as test; `later`: events after the cut."""
    schema = schema_of(rows, *sizes, **more)
    first = schema.tasks[0].name
    names = {first: "watch", schema.tasks[-1].name: "rating"} if len(schema.tasks) == 2 else {}
    counts = {names.get(name, name): value for name, value in schema.labels["train"].items()}
    half = {"labelled": later, "positive": later // 2, "mean": 0.5}
    after = {name: half for name in counts}
    return replace(
        schema,
        protocol="time",
        vocabulary="train",
        events=True,
        user=replace(schema.user, trained=trained),
        tasks=tuple(replace(task, name=names.get(task.name, task.name)) for task in schema.tasks),
        labels={"train": counts, "val": after, "test": after},
    )


@pytest.mark.parametrize(
    ("schema", "recipe"),
    [
        (in_time(), "movielens_100k_time"),
        (in_time(1_975_140, (6040, 3416), trained=6040, later=12_080), "movielens_1m_next"),
    ],
)
def test_the_sizes_of_a_recipe_in_time_give_the_recipe(schema: Schema, recipe: str) -> None:
    """But for the order of one second, which data do not tell, and a patience that never ends."""
    raw, _ = with_choices({}, schema, everything=True)
    found = differences(parse_config(raw).model_dump(mode="json"), read_resolved(recipe))
    assert set(found) == {"data.tie_rule", "trainer.patience"}


def test_other_protocols_and_short_histories_keep_what_they_had() -> None:
    """`paper` has no order; 11,343 positives of 7,169 users are 1.6 each, without one to learn."""
    assert not [key for key in chosen(schema_of()) if "sequence" in key]
    passers = in_time(22_685, (9000, 300), trained=7169)
    plain = {**chosen(schema_of(22_685, 7169, 300)), "model.sequence": "none"}
    assert chosen(passers) == {**plain, "model.time_features": ("popularity",)}


SEQUENCE = {
    **{"model.sequence": "lru", "model.sequence_length": 200, "model.sequence_blocks": 2},
    **{"model.sequence_dropout": 0.4, "model.sequence_gain": 0.03, "data.tie_rule": "strict"},
    "model.next_item_weight": 0.0,
    "trainer.precision": "32-true",
}


def test_with_negatives_of_the_log_order_comes_beside_what_the_log_has_anyway() -> None:
    own = chosen(in_time(negatives=None))
    assert own == {**chosen(schema_of(157_484, 742, negatives=None)), **SEQUENCE}
    assert own["model.item_bag"] != "none" and own["optim.weight_decay"] > 0
    ratings = chosen(in_time(negatives=None, tasks=("regression",)))
    assert (ratings["model.item_bag"], ratings["optim.weight_decay"]) == ("none", 0)
    assert (ratings["model.sequence_gain"], ratings["model.next_item_weight"]) == (0.03, 0)
    assert "model.sequence_gain" not in chosen(in_time())  # its negatives are drawn anew


@pytest.mark.parametrize(("asked", "gain"), [({}, 1.0), ({"sequence_gain": 0.25}, 0.25)])
def test_the_gain_is_what_the_last_norm_begins_with(asked: dict[str, float], gain: float) -> None:
    config = parse_config({"model": {**TINY_MODEL, **SEQUENCE_MODEL, **asked}})
    encoders = build_model(config, in_time()).encoders
    assert encoders is not None
    assert encoders.sequence.last_norm.weight.tolist() == [gain] * 8


def test_few_rows_in_time_read_what_is_popular_at_the_time() -> None:
    """Below 30,000 rows, whatever the events of a user; there lists do not choose the epoch."""
    few, enough = chosen(in_time(29_999)), chosen(in_time(30_000))
    assert few["model.time_features"] == ("popularity",) and "trainer.monitor" not in few
    assert "model.time_features" not in enough and enough["trainer.monitor"] == "watch/auc"
    assert few["model.sequence"] == enough["model.sequence"] == "lru"
    assert "model.time_features" not in chosen(in_time(29_999), model__time_features="none")


def test_the_share_of_new_users_rows_is_told_from_counts() -> None:
    """(943 - 742) users of 78,742 / 742 = 106 events are 21,330 of 21,250: all of them."""
    assert new_rows(in_time()) == 1.0
    # 100 of 1,000 with 50 each are 5,000 of the 20,000 events after the cut.
    assert new_rows(in_time(90_000, (1000, 500), trained=900, later=20_000)) == pytest.approx(0.25)
    assert new_rows(replace(in_time(), labels={})) == 0.0


def test_ids_and_biases_are_for_users_who_are_known() -> None:
    new, known = in_time(), in_time(trained=943)
    assert (chosen(new)["model.user_ids"], chosen(new)["model.biases"]) == (False, False)
    assert chosen(new)["tasks.rating.training_weight"] == 2.0
    assert (chosen(known)["model.user_ids"], chosen(known)["model.biases"]) == (True, True)
    assert "tasks.rating.training_weight" not in chosen(known)
    assert chosen(new)["data.events_dropout"] == 0.02 and "data.events_dropout" not in chosen(known)
    # Ratings of new users are learned sooner than those of known ones.
    assert (chosen(new)["trainer.max_epochs"], chosen(known)["trainer.max_epochs"]) == (6, 10)
    seconds = {"mean": 120.0, "std": 300.0, "min": 1.0, "max": 9000.0}
    assert chosen(in_time(rating=seconds))["model.biases"] is True  # biases are of ids


def test_what_is_given_decides_the_rest() -> None:
    off = chosen(in_time(), model__sequence="none")
    assert off == chosen(schema_of(157_484, 742))
    assert chosen(in_time(), model__bilinear_rank=0)["model.next_item_weight"] == 0
    assert chosen(in_time(), model__biases=False)["model.user_ids"] is False
    assert "model.sequence" not in chosen(
        in_time(), model__name="recsys_moe.model.two_tower:TwoTower"
    )
    # 11,188 rows in batches of 128 are 88 steps an epoch: 5 have 390, which ten epochs exceed.
    assert chosen(in_time(11_188))["trainer.max_epochs"] == 10
    assert chosen(in_time(11_188), trainer__batch_size=1024)["trainer.max_epochs"] == 36  # of 11


@given(
    st.integers(0, 10**8),
    st.integers(1, 10**5),
    st.integers(0, 10**6),
    st.sampled_from([("binary",), ("regression",), ("ranking", "regression"), ("count",)]),
    st.sampled_from([None, "uniform", "popularity"]),
    st.sampled_from(["mtmoe", "two_tower"]),
)
def test_the_choices_for_any_log_in_time_are_a_valid_configuration(
    rows: int, users: int, later: int, tasks: Any, negatives: Any, model: str
) -> None:
    schema = in_time(
        *(rows, (users, 300)), trained=users // 2 + 1, later=later, tasks=("binary", "regression"),
        negatives=negatives,
    )  # fmt: skip
    own = tuple(Task(name=f"t{n}", kind=kind, column=kind) for n, kind in enumerate(tasks))
    schema = replace(schema, tasks=own)
    for raw in ({}, {"model": {"name": model}}):
        found, made = with_choices(raw, schema, everything=True)
        build_next_item(parse_config(found), schema)
        assert {one.key for one in made if not one.key.startswith("tasks.")} <= KEYS


def test_explain_and_fit_say_that_the_order_is_read(
    timed: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    lines = command("config", "explain", "--data", timed).out.splitlines()
    assert lines[0].startswith("model.sequence=lru: ") and "events a user" in lines[0]
    assert lines[1].startswith('model.time_features=["popularity"]: ')
    caplog.set_level(logging.INFO, "recsys_moe.fit")
    say(resolve_with_choices(None, None, {}, [], data=timed)[1])
    told = [line.strip().partition("=")[0] for line in caplog.messages if line.startswith("  ")]
    assert told == ["model.sequence", "model.user_ids", "model.next_item_weight"]
