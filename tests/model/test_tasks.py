"""Losses and masks of the task kinds. Axes: B batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.kinds import KINDS
from recsys_moe.model.tasks import mean_loss, row_losses, step_counts
from tests.kinds.test_contract import kind_for, spread

NAN = math.nan


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_batch_without_labels_costs_nothing_and_keeps_the_graph(kind: str) -> None:
    logits_B = torch.zeros(3, requires_grad=True)
    loss = mean_loss(kind_for(kind), spread(kind_for(kind), logits_B), torch.full((3,), NAN))
    loss.backward()
    assert loss.item() == 0 and logits_B.grad.tolist() == [0, 0, 0]


@given(st.lists(st.tuples(st.floats(-30, 30), st.sampled_from([0.0, 1.0, NAN])), min_size=1))
def test_unlabelled_rows_get_neither_loss_nor_gradient(rows: list[tuple[float, float]]) -> None:
    logits_B = torch.tensor([logit for logit, _ in rows], requires_grad=True)
    labels_B = torch.tensor([label for _, label in rows])
    losses_B, mask_B = row_losses(KINDS["binary"], logits_B, labels_B)
    losses_B.sum().backward()
    assert torch.isfinite(losses_B).all() and torch.isfinite(logits_B.grad).all()
    assert (losses_B[~mask_B] == 0).all() and (logits_B.grad[~mask_B] == 0).all()


def test_only_rows_with_a_label_are_counted_for_a_task() -> None:
    counts = step_counts(torch.tensor([[1.0, NAN], [0.0, NAN], [NAN, NAN]]))
    assert counts.labelled_T.tolist() == [2, 1]  # none counts as one: it is divided by
    assert counts.rows.item() == 3
