"""Deviances, D2 and concordance against scikit-learn and plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    d2_tweedie_score,
    mean_absolute_error,
    mean_gamma_deviance,
    mean_poisson_deviance,
    mean_squared_error,
)

from recsys_moe.kinds import KINDS
from recsys_moe.kinds.curves import concordance

POWER = {"count": 1, "duration": 2}
DEVIANCE = {"count": mean_poisson_deviance, "duration": mean_gamma_deviance}


@pytest.mark.parametrize("name", POWER)
def test_deviance_and_d2_are_those_of_scikit_learn(name: str) -> None:
    torch.manual_seed(1)
    logits_N, labels_N = torch.randn(500), torch.poisson(torch.rand(500) * 4)
    labels_N = labels_N if name == "count" else labels_N + torch.rand(500)
    metrics = KINDS[name].measure()
    metrics.update(logits_N, labels_N)
    found, (y, mean) = metrics.compute(), (labels_N.double(), logits_N.double().exp())
    assert found["deviance"] == pytest.approx(DEVIANCE[name](y, mean), rel=1e-6)
    assert found["d2"] == pytest.approx(d2_tweedie_score(y, mean, power=POWER[name]), rel=1e-5)
    assert found["mse"] == pytest.approx(mean_squared_error(y, mean), rel=1e-6)
    assert found["mae"] == pytest.approx(mean_absolute_error(y, mean), rel=1e-6)


@pytest.mark.parametrize("name", POWER)
def test_equal_labels_leave_d2_undefined(name: str) -> None:
    metrics = KINDS[name].measure()
    metrics.update(torch.randn(5), torch.full((5,), 3.0))
    found = metrics.compute()
    assert found["d2"] is None and found["deviance"] is not None
    assert found.get("concordance") is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=30))
def test_concordance_is_the_share_of_pairs_in_order(rows: list[tuple[int, int]]) -> None:
    won, pairs = 0.0, 0
    for n, (score, label) in enumerate(rows):
        for other, smaller in rows[:n]:
            if label != smaller:
                pairs += 1
                order = (score - other) * (label - smaller)
                won += 1.0 if order > 0 else 0.5 if order == 0 else 0.0
    scores, labels = (torch.tensor([float(row[c]) for row in rows]) for c in (0, 1))
    found = concordance(scores, labels)
    assert found == (pytest.approx(won / pairs, abs=1e-12) if pairs else None)


def test_concordance_compares_every_row_however_many() -> None:
    rows = 150_000
    labels = torch.arange(rows).float()
    scores = labels.clone()
    scores[[0, -1]] = labels[[-1, 0]]
    wrong = 2 * (rows - 2) + 1  # both ends with all between them, and with each other
    assert concordance(scores, labels) == pytest.approx(1 - wrong / math.comb(rows, 2), abs=1e-12)


def test_equal_scores_put_half_of_the_pairs_in_order() -> None:
    assert concordance(torch.zeros(4), torch.tensor([1.0, 2, 2, 3])) == 0.5
