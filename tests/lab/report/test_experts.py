"""Load, sharpness and likeness are what a reader can work out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.data.columns import load_columns
from recsys_moe.data.rows import Columns
from recsys_moe.lab.report.experts import BINS, expert_load, likeness, sharpness
from recsys_moe.lab.report.sample import Sample, choose_rows, joined, routed, take_sample
from recsys_moe.model.penalties import trimmed_lasso
from recsys_moe.routers import Routing

TASKS = ["watch", "rating"]


def routing(weights: list[list[float]], probs: list[list[float]] | None = None) -> Routing:
    weights_BE = torch.tensor(weights)
    return Routing(weights_BE, weights_BE > 0, None if probs is None else torch.tensor(probs))


def sample_of(*routings: Routing) -> Sample:
    rows = len(routings[0].weights_BE)
    empty = torch.zeros(rows, dtype=torch.int32)
    logits_NT = torch.zeros(rows, len(routings))
    return Sample(
        columns=Columns(empty, empty, logits_NT),
        split="test",
        split_rows=rows,
        logits_NT=logits_NT,
        evaluation={},
        **joined([routed(routings)]),
    )


WATCH = routing([[0.5, 0.5, 0, 0], [0.75, 0.25, 0, 0], [0, 0, 0, 0], [1.0, 0, 0, 0]])
RATING = routing([[1.0, 0, 0, 0], [0, 0, 1.0, 0], [0, 0, 1.0, 0], [0, 0, 1.0, 0]])


def test_load_counts_visits_first_choices_and_weight() -> None:
    found = expert_load(sample_of(WATCH, RATING), TASKS)
    assert found.visits == {"watch": [3 / 4, 2 / 4, 0, 0], "rating": [1 / 4, 0, 3 / 4, 0]}
    assert found.first["watch"] == [3 / 4, 0, 0, 0]  # the tie in row 0 goes to expert 0
    # 0.5 + 0.75 + 1 of 3 in all, 0.5 + 0.25 of 3
    assert found.weight["watch"] == pytest.approx([2.25 / 3, 0.75 / 3, 0, 0])
    assert found.either == [3 / 4, 2 / 4, 3 / 4, 0]
    assert found.even == {"watch": 5 / 16, "rating": 4 / 16}
    assert found.idle == [3]  # expert 2 is not visited for watch, but it is for rating


def test_an_expert_is_idle_below_a_tenth_of_an_even_share() -> None:
    def idle(visits: int) -> list[int]:
        """Of 100 rows one expert each, `visits` of them to expert 1; an even share is 50."""
        weights = [[0.0, 1.0]] * visits + [[1.0, 0.0]] * (100 - visits)
        return expert_load(sample_of(routing(weights)), ["watch"]).idle

    assert [idle(n) for n in (0, 5, 6, 50)] == [[1], [1], [], []]


@pytest.mark.parametrize(("weight", "light"), [(0.02, [1]), (0.03, [])])
def test_an_expert_hardly_counts_below_a_tenth_of_an_even_share_of_the_weight(
    weight: float, light: list[int]
) -> None:
    # an even share of four experts is 0.25, a tenth of it 0.025
    others = (1 - weight) / 3
    weights_BE = torch.tensor([[others, weight, others, others]])
    dense = Routing(weights_BE, torch.ones(1, 4, dtype=torch.bool))
    assert expert_load(sample_of(dense), ["watch"]).light == light


def test_entropy_is_ln_of_the_number_of_equal_experts() -> None:
    probs = [[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4]
    taken = routing([[1.0, 0, 0, 0]] * 3, probs)
    sample = sample_of(taken)
    assert sample.entropy_NT[:, 0].tolist() == pytest.approx([0, math.log(2), math.log(4)])
    found = sharpness(sample, ["watch"], [2])
    filled = {n: share for n, share in enumerate(found.entropy["watch"]) if share}
    # ln 2 is half of ln 4, where bin 15 of 30 begins (or 14 ends)
    assert set(filled) <= {0, 14, 15, 29} and len(filled) == 3
    assert sum(filled.values()) == pytest.approx(1)
    assert found.mean["watch"] == pytest.approx((math.log(2) + math.log(4)) / 3)
    assert (found.edges[0], found.edges[-1]) == (0, pytest.approx(math.log(4)))
    assert len(found.edges) == BINS + 1


def test_mass_of_the_k_largest_is_what_the_trimmed_lasso_leaves() -> None:
    probs_BE = torch.rand(50, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    taken = Routing(probs_BE, torch.ones(50, 4, dtype=torch.bool), probs_BE)
    found = sharpness(sample_of(taken), ["watch"], [2])
    expected = [1 - float(trimmed_lasso(probs_BE, k)) for k in (1, 2, 3, 4)]
    assert found.mass["watch"] == pytest.approx(expected, abs=1e-6)
    assert (found.kept, found.basis) == ({"watch": 2}, {"watch": "probabilities"})


def test_without_probabilities_the_weights_count_and_empty_rows_are_left_out() -> None:
    sample = sample_of(WATCH)
    assert sample.entropy_NT[2, 0].isnan()
    found = sharpness(sample, ["watch"], [2])
    assert found.basis == {"watch": "weights"}
    quarters = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found.mean["watch"] == pytest.approx((math.log(2) + quarters + 0) / 3)


def naive_cosine(x_ND: Tensor, kernel_EDH: Tensor, bias_EH: Tensor, a: int, b: int) -> float:
    outputs = [(x_ND @ kernel_EDH[e] + bias_EH[e]).relu().flatten().double() for e in (a, b)]
    return float(outputs[0] @ outputs[1] / (outputs[0].norm() * outputs[1].norm()))


def test_likeness_is_the_cosine_of_the_outputs(run: Path, prepared: Path) -> None:
    artifact = load_artifact(run)
    columns = load_columns(prepared, artifact.schema, "test")
    model = artifact.model
    x_ND = torch.cat(
        [model.user_embedding(columns.user), model.item_embedding(columns.item)], -1
    ).detach()
    experts = model.moe.experts
    found = likeness(artifact, columns)
    for a in range(4):
        for b in range(4):
            expected = naive_cosine(
                x_ND, experts.kernel_EDH.detach(), experts.bias_EH.detach(), a, b
            )
            assert found.cosine[a][b] == pytest.approx(expected, abs=1e-5)
    assert (found.twins, found.silent, found.rows) == ([], [], len(columns))


def test_functions_are_compared_and_not_weights(run: Path, prepared: Path) -> None:
    """Expert 1 is three times expert 0 on every example; expert 2 never answers."""
    artifact = load_artifact(run)
    experts = artifact.model.moe.experts
    with torch.no_grad():
        experts.kernel_EDH[1] = 3 * experts.kernel_EDH[0]
        experts.bias_EH[1] = 3 * experts.bias_EH[0]
        experts.bias_EH[2] = -100.0
    columns = load_columns(prepared, artifact.schema, "test")
    found = likeness(artifact, columns)
    assert [pair[:2] for pair in found.twins] == [(0, 1)]
    assert found.twins[0][2] == pytest.approx(1)
    assert found.silent == [2]
    assert found.cosine[2] == [None] * 4


def test_a_sample_of_everything_gives_the_metrics_of_evaluate(run: Path, prepared: Path) -> None:
    artifact = load_artifact(run)
    rows = load_columns(prepared, artifact.schema, "test")
    sample = take_sample(artifact, rows, "test", most=len(rows), seed=0)
    expected: dict[str, Any] = evaluate_artifact(run, "test", None)
    del expected["trained_on_these_data"], expected["baselines"]  # look_at adds these
    del expected["segments"]  # a table of its own: warm_and_cold
    assert sample.evaluation == expected
    loads = expert_load(sample, TASKS)
    for task, one in expected["routing"].items():
        share = [visits / one["experts_per_example"] for visits in loads.visits[task]]
        assert share == pytest.approx(one["load"])


def test_a_smaller_sample_is_of_whole_groups_and_repeats_with_its_seed() -> None:
    found = choose_rows(1003, 100, 10, seed=1)
    assert len(found) == 100 or (len(found) == 93 and 1002 in found)
    assert found.tolist() == sorted(set(found.tolist()))
    assert {row % 10 for row in found.tolist()} == set(range(10))
    assert all(row + 1 in found.tolist() for row in found.tolist() if row % 10 < 9 and row < 1002)
    assert torch.equal(found, choose_rows(1003, 100, 10, seed=1))
    assert not torch.equal(found, choose_rows(1003, 100, 10, seed=2))
    assert choose_rows(7, 100, 10, seed=1).tolist() == list(range(7))
    assert len(choose_rows(1003, 3, 10, seed=1)) in (10, 3)  # never part of a group


def test_rows_of_a_sample_keep_their_labels(run: Path, prepared: Path) -> None:
    artifact = load_artifact(run)
    rows = load_columns(prepared, artifact.schema, "test")
    place = choose_rows(len(rows), 50, 1, seed=3)
    sample = take_sample(artifact, rows, "test", most=50, seed=3)
    assert torch.equal(sample.columns.user, rows.user[place])
    assert not sample.is_whole and replace(sample, split_rows=50).is_whole
