"""What needs no model, and the words for a model that is no better."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe.artifact.baselines import baselines, missed
from recsys_moe.data.rows import Columns
from recsys_moe.schema import Schema

NAN = torch.nan


def columns(rows: list[tuple[int, int, float, float]]) -> Columns:
    user, item, *labels = zip(*rows, strict=True)
    index = (torch.tensor(column, dtype=torch.int32) for column in (user, item))
    return Columns(*index, torch.tensor(labels).T.contiguous())


@pytest.fixture
def schema(prepared: Path) -> Schema:
    """Two users, three items, watch and rating; 2 of 5 rows are positive, the mean rating is 3."""
    schema = Schema.load(prepared)
    labels = {
        "watch": {"labelled": 5, "mean": 0.4, "positive": 2},
        "rating": {"labelled": 2, "mean": 3.0, "std": 1.0},
    }
    return replace(
        schema,
        user=replace(schema.user, size=2),
        item=replace(schema.item, size=3),
        labels={"train": labels},
    )


TRAIN = columns(
    [(0, 0, 1, 4), (0, 1, 0, NAN), (1, 0, 1, 2), (1, 1, 0, NAN), (1, 2, 0, NAN)],
)
"""Item 0 has two positives, the others none; its ratings are 4 of user 0 and 2 of user 1."""


def test_popularity_is_the_auc_of_an_items_positives_in_training(schema: Schema) -> None:
    """Scores 2, 0, 0 for labels 1, 0, 1: one pair is won, one is a tie: (1 + 1/2) / 2."""
    rows = columns([(0, 0, 1, NAN), (0, 1, 0, NAN), (1, 2, 1, NAN)])
    assert baselines(TRAIN, rows, schema)["watch"]["popularity"] == {"auc": 0.75}


def test_the_base_rate_is_that_of_training(schema: Schema) -> None:
    rows = columns([(0, 0, 1, NAN), (0, 1, 0, NAN), (1, 2, 1, NAN)])
    expected = -(2 * math.log(2 / 5) + math.log(3 / 5)) / 3
    found = baselines(TRAIN, rows, schema)["watch"]["base_rate"]["bce"]
    assert found == pytest.approx(expected)


def test_user_and_item_means_are_damped_by_five_rows(schema: Schema) -> None:
    """Item 0: (1 - 1) / (2 + 5) = 0. User 0: 1 / (1 + 5), so 3 + 1/6 for a rating of 4."""
    found = baselines(TRAIN, columns([(0, 0, NAN, 4)]), schema)["rating"]
    assert found["mean"]["mse"] == pytest.approx(1.0)
    assert found["user_item_mean"]["mse"] == pytest.approx((5 / 6) ** 2)


def test_a_users_mean_is_that_of_what_its_items_leave(schema: Schema) -> None:
    """Item 0: (1 + 1) / (2 + 5) = 2/7. User 0: (1 - 2/7) / (1 + 5) = 5/42; so 3 + 17/42."""
    alike = columns([(0, 0, NAN, 4), (1, 0, NAN, 4)])
    found = baselines(alike, columns([(0, 0, NAN, 4)]), schema)["rating"]
    assert found["user_item_mean"]["mse"] == pytest.approx((25 / 42) ** 2)


def test_one_class_in_training_has_no_base_rate(schema: Schema) -> None:
    one = {**schema.labels["train"], "watch": {"labelled": 5, "mean": 1.0, "positive": 5}}
    found = baselines(TRAIN, TRAIN, replace(schema, labels={"train": one}))
    assert found["watch"]["base_rate"]["bce"] is None


def test_ids_never_seen_get_the_mean(schema: Schema) -> None:
    found = baselines(TRAIN, columns([(2, 3, 1, 5), (2, 3, 0, 5)]), schema)
    assert found["rating"]["user_item_mean"]["mse"] == pytest.approx(4.0)
    assert found["watch"]["popularity"]["auc"] == 0.5


def test_what_cannot_be_judged_is_none(schema: Schema) -> None:
    found = baselines(TRAIN, columns([(0, 0, 1, NAN)]), schema)
    assert found["watch"]["popularity"]["auc"] is None
    assert found["rating"] == {"mean": {"mse": None}, "user_item_mean": {"mse": None}}


@pytest.mark.parametrize(
    ("auc", "mse", "named"),
    [
        (0.8, 0.9, []),
        (0.7, 0.9, ["val: watch AUC 0.7000 popularity 0.7000"]),
        (0.8, 1.0, ["val: rating MSE 1.0000 mean 1.0000"]),
        (None, None, []),
    ],
)
def test_a_baseline_that_is_not_beaten_is_named(auc: Any, mse: Any, named: list[str]) -> None:
    result = {
        "split": "val",
        "tasks": {"watch": {"auc": auc}, "rating": {"mse": mse}},
        "baselines": {
            "watch": {"popularity": {"auc": 0.7}, "base_rate": {}},
            "rating": {"mean": {"mse": 1.0}, "user_item_mean": {"mse": None}},
        },
    }
    lines = list(missed(result))
    for line, words in zip(lines, named, strict=True):
        assert [word for word in line.split() if word in words.split()] == words.split()
