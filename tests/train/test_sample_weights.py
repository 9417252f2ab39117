"""A row of weight w counts in training as w rows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from data_prep import table
from recsys_moe.config.settings import parse_config
from recsys_moe.kinds import KINDS
from recsys_moe.model.tasks import mean_disagreement, mean_loss, step_counts
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL
from tests.train.test_module import BATCH, module

NAN = math.nan


def test_a_row_of_weight_3_counts_as_three_rows() -> None:
    """(3 x (1 - 4)^2 + 1 x (2 - 4)^2) / (3 + 1) = (27 + 4) / 4; the row without a label: nothing"""
    labels = torch.tensor([[4.0], [4.0], [NAN]])
    counts = step_counts(labels, weight_B=torch.tensor([3.0, 1.0, 50.0]))
    assert counts.labelled_T.tolist() == [4.0]
    assert counts.rows == 3  # of penalties, which do not ask for labels
    columns = torch.tensor([1.0, 2.0, 9.0]), labels[:, 0], counts.labelled_T[0]
    assert mean_loss(KINDS["regression"], *columns, weight_B=counts.weight_B).item() == 31 / 4


def test_a_disagreement_is_weighted_too() -> None:
    """(3 x (1 - 2)^2 + 1 x (2 - 4)^2) / 4 = 7 / 4"""
    found = mean_disagreement(
        KINDS["regression"],
        torch.tensor([1.0, 2.0]),
        torch.tensor([2.0, 4.0]),
        torch.tensor([1.0, 1.0]),
        count=torch.tensor(4.0),
        weight_B=torch.tensor([3.0, 1.0]),
    )
    assert found.item() == 7 / 4


def test_rows_of_weight_0_alone_have_a_loss_of_0() -> None:
    labels, weight_B = torch.ones(2, 1), torch.zeros(2)
    counts = step_counts(labels, weight_B=weight_B)
    columns = torch.ones(2), labels[:, 0], counts.labelled_T[0]
    loss = mean_loss(KINDS["binary"], *columns, weight_B=weight_B)
    assert loss.item() == 0


@pytest.mark.parametrize("router", ["softmax", "thor"])
def test_a_step_with_weights_is_that_with_rows_repeated(router: str) -> None:
    """Without dropout: rows 0, 2, 2 and weights 1, 0, 2, 0, 0 give the same gradients.

    thor draws per row, so there only the weights of 1 are compared with none.
    """
    weights = [1.0, 0, 2, 0, 0] if router == "softmax" else [1.0] * 5
    rows = [0, 2, 2] if router == "softmax" else [0, 1, 2, 3, 4]
    repeated = type(BATCH)(BATCH.user[rows], BATCH.item[rows], BATCH.labels[rows])
    gradients = []
    for batch in (BATCH._replace(weight=torch.tensor(weights)), repeated):
        trained = module({"name": router}, penalties={})
        trained.training_step(batch, 1).backward()
        gradients.append([p.grad for p in trained.parameters()])
    for weighted, copied in zip(*gradients, strict=True):
        assert torch.allclose(weighted, copied, atol=1e-6)


def test_a_row_of_weight_0_counts_nothing_in_the_disagreement_of_two_passes() -> None:
    """The whole loss of a step of thor: both passes, and how far they disagree."""
    labels = BATCH.labels.clone()
    labels[0] = 1 - labels[0]
    weight = torch.tensor([0.0, 1, 1, 1, 1])
    totals = [
        module({"name": "thor", "consistency": 50.0}).training_step(batch, 1).item()
        for batch in (BATCH._replace(weight=weight), BATCH._replace(weight=weight, labels=labels))
    ]
    user = BATCH.user.clone()
    user[0] = 5
    other = module({"name": "thor", "consistency": 50.0})
    moved = other.training_step(BATCH._replace(weight=weight, user=user), 1).item()
    assert totals[0] == pytest.approx(totals[1]) == pytest.approx(moved)


def test_labels_of_rows_of_weight_0_change_nothing_in_a_model(tmp_path: Path) -> None:
    """Neither in the loss nor in what it begins with: mean, deviation and user and item biases."""
    rng = np.random.default_rng(0)
    pairs = pd.MultiIndex.from_product([range(20), range(15)], names=["user", "item"])
    rows = pairs.to_frame(index=False)
    rows["clicked"], rows["stars"] = rng.integers(2, size=300), rng.integers(1, 6, 300)
    rows["mass"] = rng.choice([0.0, 1, 2], 300)
    other = rows.copy()
    other.loc[rows["mass"] == 0, ["clicked", "stars"]] = 1, 1000
    models = []
    for number, train in enumerate((rows[:200], other[:200])):
        files = {"train": train, "val": rows[200:250], "test": rows[250:]}
        for split, part in files.items():
            part.to_csv(tmp_path / f"{split}.csv", index=False)
        data, run = tmp_path / f"data{number}", tmp_path / f"run{number}"
        given = {split: tmp_path / f"{split}.csv" for split in files}
        tasks = ["watch:binary=clicked", "rating:regression=stars"]
        table.prepare(data, **given, user="user", item="item", tasks=tasks, weight="mass")
        fit(parse_config({"model": TINY_MODEL, "trainer": {"max_epochs": 1}}), data, run)
        models.append(load_file(run / "model" / "weights.safetensors"))
    assert models[0].keys() == models[1].keys()
    assert [name for name in models[0] if not torch.equal(models[0][name], models[1][name])] == []
