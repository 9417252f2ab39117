"""An evaluation depends on model, rows, seed and task weights only."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from recsys_moe.artifact.evaluation import Evaluation, evaluate_model
from recsys_moe.config.build import build_model
from recsys_moe.config.settings import Config, parse_config, task_weights
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.columns import load_columns
from recsys_moe.model.output import Output
from recsys_moe.routers import Routing
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL

SAMPLED = {**TINY_MODEL, "router": {"name": "moesart", "inference": "sampled"}}
"""Draws experts at evaluation too."""


def sampled(seed: int = 0, **trainer: Any) -> Config:
    return parse_config({"model": SAMPLED, "trainer": {"seed": seed, **trainer}})


def test_the_same_model_and_seed_evaluate_to_the_same_numbers(prepared: Path) -> None:
    schema = Schema.load(prepared)
    rows = EvalBatches(load_columns(prepared, schema, "val"), 128)
    torch.manual_seed(0)
    model = build_model(sampled(), schema)
    seeds = (0, 0, 1)
    losses = [
        evaluate_model(model, rows, schema, sampled(seed), split="val")["loss"] for seed in seeds
    ]
    assert losses[0] == losses[1] != losses[2]


def test_validation_while_training_draws_as_the_evaluation_of_its_epoch_does(
    prepared: Path, tmp_path: Path
) -> None:
    result = fit(sampled(max_epochs=2, batch_size=64), prepared, tmp_path / "run")
    rows = csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines())
    logged = {int(row["epoch"]): float(row["val/loss"]) for row in rows}
    # 1e-6: metrics.csv holds float32; another draw moves the loss by more than 1e-4
    assert result["loss"] == pytest.approx(logged[result["epoch"]], abs=1e-6)


def test_a_task_weight_of_the_configuration_stands_over_that_of_the_data(prepared: Path) -> None:
    schema = Schema.load(prepared)
    config = parse_config({"tasks": {"rating": {"weight": 0.25}}, "model": {"biases": False}})
    watch, rating = (task.weight for task in schema.tasks)
    assert rating != 0.25 and task_weights(config, schema.tasks) == [watch, 0.25]
    logits_BT, labels_BT = torch.tensor([[0.5, 3.0], [-1.0, 2.0]]), torch.tensor([[1.0, 4], [0, 4]])
    selected_BE = torch.ones(2, 4, dtype=torch.bool)
    routing = Routing(selected_BE.float(), selected_BE)
    evaluation = Evaluation(schema, config)
    evaluation.update(Output(logits_BT, {"routings": [routing, routing]}), labels_BT)
    bce = F.binary_cross_entropy_with_logits(logits_BT[:, 0], labels_BT[:, 0]).item()
    # squared errors 1 and 4: mse 2.5
    assert evaluation.result("val")["loss"] == pytest.approx(watch * bce + 0.25 * 2.5)
