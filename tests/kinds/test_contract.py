"""What every task kind of the table keeps. Axes: B rows of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from data_prep.rows import Examples
from data_prep.write.counts import Counts
from recsys_moe.kinds import HIGHER_IS_BETTER, KINDS, Kind, Labelled, kind_of
from recsys_moe.kinds.judging import Judging
from recsys_moe.model.biases import Biases
from recsys_moe.model.tasks import mean_loss
from recsys_moe.schema import Task

NAN = math.nan
Floats = list[float]
KIND_NAMES = sorted(KINDS)
LABELS: dict[str, list[float]] = {
    "binary": [0, 1],
    "ranking": [0, 1],
    "regression": [-3.5, 0, 2, 4],
    "count": [0, 1, 2, 7],
    "duration": [0.25, 1, 3, 40],
    "ordinal": [1, 2, 3.5, 4],
    "multiclass": [0, 1, 2],
}
REFUSED = {
    "binary": [2, 0.5, -1, math.inf],
    "ranking": [2, 0.5, -1, math.inf],
    "regression": [math.inf, -math.inf],
    "count": [-1, 0.5, math.inf],
    "duration": [0, -1, math.inf],
    "ordinal": [1.5, 0, 5, math.inf],
    "multiclass": [3, -1, 0.5, math.inf],
}
"""By kind; a new kind adds a line to both."""


def some_labels(kind: str, rows: int, seed: int = 0, missing: float = 0.0) -> Tensor:
    rng = np.random.default_rng(seed)
    labels = rng.choice(LABELS[kind], rows)
    return torch.tensor(np.where(rng.random(rows) < missing, NAN, labels))


def counts_of(kind: str, labels: Tensor, weight: Tensor | None = None) -> dict[str, float]:
    """As schema.json has them."""
    task = Task(name="t", kind=kind, column="t")
    counts = Counts((task,))
    place = np.zeros(len(labels), dtype=np.int32)
    weights = None if weight is None else weight.numpy().astype(np.float32)
    columns = {"user": place, "item": place, "timestamp": place.astype(np.int64)}
    counts.add(Examples(**columns, labels={"t": labels.numpy()}, weight=weights))
    return counts.of(task, "train")


def kind_for(name: str, labels: Tensor | None = None) -> Kind:
    """With the levels of these labels; by default with each label once."""
    if labels is None:
        labels = torch.tensor(LABELS[name]).double()
    classes = tuple("abc"[: len(LABELS[name])]) if KINDS[name].reads_text else ()
    kind = replace(KINDS[name], classes=classes)
    levels, shares = kind.levels_of({"train": counts_of(name, labels)})
    return replace(kind, levels=levels, shares=shares)


SPREAD = (1.0, 0.5, -1.0)


def spread(kind: Kind, logits: Tensor) -> Tensor:
    """Logits of all outputs, multiples of one."""
    return logits if kind.outputs == 1 else logits[..., None] * logits.new_tensor(SPREAD)


def naive_loss(kind: str, z: float, y: float) -> float:
    """Of one row, in plain floats; `ranking` has pairs instead."""
    if kind == "binary":
        return math.log1p(math.exp(-z if y else z))
    if kind == "multiclass":
        weights = [math.exp(factor * z) for factor in SPREAD]
        return -math.log(weights[LABELS[kind].index(y)] / sum(weights))
    if kind == "regression":
        return (z - y) ** 2
    mean = math.exp(z)
    if kind == "ordinal":  # of four levels with equal shares: thresholds -log 3, 0, log 3
        ends = [-math.inf, -math.log(3), 0.0, math.log(3), math.inf]
        above = [1 / (1 + math.exp(end - z)) if end < math.inf else 0.0 for end in ends]
        place = LABELS[kind].index(y)
        return -math.log(above[place] - above[place + 1])
    if kind == "count":
        return 2 * ((y * math.log(y / mean) if y else 0) - y + mean)
    return 2 * (y / mean - math.log(y / mean) - 1)


def naive_pairs(
    z: list[float], y: list[float], user: list[int], weight: list[float]
) -> list[float]:
    losses = []
    for one in range(len(z)):
        others = [o for o in range(len(z)) if {y[one], y[o]} == {0.0, 1.0}]
        own = [o for o in others if user[o] == user[one]]
        others = own or others
        parts = [
            (weight[o], math.log1p(math.exp((z[o] - z[one]) * (1 if y[one] else -1))))
            for o in others
        ]
        total = sum(w for w, _ in parts)
        losses.append(sum(w * part for w, part in parts) / total if total else 0.0)
    return losses


def naive_mean(
    kind: str, z: list[float], y: list[float], user: list[int], weight: list[float]
) -> float:
    known = [n for n in range(len(z)) if not math.isnan(y[n])]
    if kind == "ranking":
        rows = ([column[n] for n in known] for column in (z, y, user, weight))
        losses = dict(zip(known, naive_pairs(*rows), strict=True))
    else:
        losses = {n: naive_loss(kind, z[n], y[n]) for n in known}
    total = sum(weight[n] for n in known)
    return sum(weight[n] * losses[n] for n in known) / (total or 1)


PARTS = st.floats(-3, 3), st.integers(0, 4), st.integers(0, 2), st.sampled_from([0.5, 1, 2])


@pytest.mark.parametrize("name", KIND_NAMES)
@given(st.lists(st.tuples(*PARTS), max_size=8))
@settings(max_examples=40, deadline=None)
def test_loss_and_gradient_are_those_of_plain_loops(
    name: str, rows: list[tuple[float, int, int, float]]
) -> None:
    z, place, user, weight = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    y = [NAN if n == len(LABELS[name]) else LABELS[name][n % len(LABELS[name])] for n in place]
    logits_B = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    labels_B, weight_B = (torch.tensor(column, dtype=torch.float64) for column in (y, weight))
    total = (weight_B * ~labels_B.isnan()).sum()
    loss = mean_loss(
        kind_for(name),
        spread(kind_for(name), logits_B),
        labels_B,
        total.masked_fill(total == 0, 1),
        weight_B=weight_B,
        user_B=torch.tensor(user, dtype=torch.int64),
    )
    loss.backward()
    assert loss.item() == pytest.approx(naive_mean(name, z, y, user, weight), rel=1e-9, abs=1e-12)
    for row in range(len(z)):
        up, down = (
            naive_mean(name, [*z[:row], z[row] + step, *z[row + 1 :]], y, user, weight)
            for step in (1e-5, -1e-5)
        )
        assert logits_B.grad is not None
        assert logits_B.grad[row].item() == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", KIND_NAMES)
def test_labels_are_accepted_or_refused_as_the_kind_says(name: str) -> None:
    kind = kind_for(name)
    for values in (np.array, torch.tensor):
        assert not kind.invalid(values(LABELS[name], dtype=float_of(values))).any()
        assert kind.invalid(values(REFUSED[name], dtype=float_of(values))).all()
    narrow = replace(kind, low=LABELS[name][0], high=LABELS[name][1])
    assert (
        narrow.outside(np.array(LABELS[name])).tolist()
        == [False, False, True, True][: len(LABELS[name])]
    )
    assert kind.has_levels or f"{LABELS[name][0]}..{LABELS[name][1]}" in narrow.rule


def float_of(values: object) -> object:
    return np.float64 if values is np.array else torch.float64


@pytest.mark.parametrize("name", KIND_NAMES)
def test_the_link_increases_and_stays_where_predictions_may_be(name: str) -> None:
    kind = kind_for(name)
    logits = torch.linspace(-20, 15, 50).double()
    predictions = kind.link(spread(kind, logits))
    named = kind.predictions("t", spread(kind, logits))
    assert [*named] == kind.columns("t") and len(named) == kind.outputs
    if kind.outputs > 1:
        torch.testing.assert_close(predictions.sum(-1), torch.ones(50).double())
    else:
        assert (predictions.diff() > 0).all()
    if not kind.is_numeric:
        assert ((predictions >= 0) & (predictions <= 1)).all()
    elif (np.array(LABELS[name]) >= 0).all():
        assert (predictions > 0).all()


@pytest.mark.parametrize("name", KIND_NAMES)
def test_no_constant_logit_has_a_lower_loss_than_that_of_the_counts(name: str) -> None:
    labels = some_labels(name, 4000)
    kind = kind_for(name, labels)
    found = kind.constants(counts_of(name, labels))
    assert len(found) == kind.outputs

    def loss(steps: list[float]) -> float:
        logits = [one.logit + step for one, step in zip(found, steps, strict=True)]
        rows = labels.new_tensor(logits).expand(len(labels), -1)
        return mean_loss(kind, rows if len(found) > 1 else rows[:, 0], labels).item()

    best = loss([0.0] * len(found))
    assert found[0].loss == pytest.approx(best, rel=1e-3)
    for place in range(len(found)):
        for step in (-0.05, 0.05):
            assert best <= loss([step * (place == other) for other in range(len(found))])


@pytest.mark.parametrize("name", KIND_NAMES)
@pytest.mark.parametrize("label", [0, -1])
def test_equal_labels_have_a_finite_constant(name: str, label: int) -> None:
    labels = torch.full((30,), float(LABELS[name][label]), dtype=torch.float64)
    found = kind_for(name, labels).constant(counts_of(name, labels))
    assert all(map(math.isfinite, found)) and found.loss > 0 and found.scale > 0


@pytest.mark.parametrize("name", KIND_NAMES)
def test_a_row_of_weight_2_counts_as_that_row_twice(name: str) -> None:
    labels = some_labels(name, 50)
    weighted = counts_of(name, labels, torch.full((50,), 2.0).double())
    plain = counts_of(name, torch.cat([labels, labels]))
    for key in (key for key in weighted if key.startswith("weighted_")):
        assert weighted[key] == pytest.approx(plain[key.removeprefix("weighted_")], rel=1e-6)


@pytest.mark.parametrize("name", KIND_NAMES)
def test_derivatives_are_those_of_the_loss(name: str) -> None:
    """The loss is the negative log likelihood, over `likelihood`; the second derivative on average
    over labels whose mean is the prediction."""
    kind = kind_for(name if name != "ranking" else "binary")
    logits, labels = spread(kind, torch.randn(200).double()), some_labels(name, 200)
    score, information = kind_for(name).derivatives(logits, labels)
    at = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(kind.row_loss(at, labels).sum() * kind.likelihood, at)
    torch.testing.assert_close(score, -gradient)
    assert (information > 0).all()


def rows_of(kind: str, rows: int, seed: int = 0) -> Labelled:
    generator = torch.Generator().manual_seed(seed)
    user, item = (torch.randint(n, (rows,), generator=generator) for n in (7, 5))
    return Labelled(user, item, some_labels(kind, rows, seed), torch.ones(rows).double())


@pytest.mark.parametrize("name", [n for n in KIND_NAMES if not KINDS[n].reads_text])
def test_biases_raise_the_likelihood_of_their_rows(name: str) -> None:
    """Items differ: item 0 has the smallest label alone, item 4 the largest."""
    rows = rows_of(name, 3000)
    label = rows.label.clone()
    for item, end in ((0, 0), (4, -1)):
        label[rows.item == item] = LABELS[name][end]
    kind = kind_for(name, label)
    constant = kind.constant(counts_of(name, label))
    biases = Biases(7, 5, [constant])

    def chunks() -> Iterator[tuple[Tensor, ...]]:
        yield rows.user, rows.item, label, rows.weight

    biases.fit(0, kind, chunks)  # type: ignore[arg-type]
    logits = biases(torch.zeros(3000, 1), rows.user, rows.item)[:, 0].double()
    likely = KINDS["binary"] if name == "ranking" else kind
    flat = torch.full_like(label, constant.logit)
    assert likely.row_loss(logits, label).mean() < 0.9 * likely.row_loss(flat, label).mean()
    score, _ = kind.derivatives(logits, label)
    start, _ = kind.derivatives(flat, label)
    before, after = (
        torch.zeros(5).double().index_add(0, rows.item, one).abs().sum() for one in (start, score)
    )
    assert after < 0.2 * before  # near the optimum the derivative is 0


@pytest.mark.parametrize("name", KIND_NAMES)
def test_merged_metrics_are_those_of_all_rows(name: str) -> None:
    kind = kind_for(name)
    logits = spread(kind, torch.randn(300))
    labels = some_labels(name, 300, missing=0.2).float()
    whole, *parts = (kind.measure() for _ in range(4))
    whole.update(logits, labels)
    for part, some in zip(parts, torch.arange(300).split(100), strict=True):
        part.update(logits[some], labels[some])
    for part in parts[1:]:
        parts[0].merge(part)
    found, expected = parts[0].compute(), whole.compute()
    assert found.keys() == expected.keys() >= {*kind.metrics, "rows"}
    for metric, value in expected.items():
        assert found[metric] == (None if value is None else pytest.approx(value, rel=1e-6))


@pytest.mark.parametrize("name", KIND_NAMES)
def test_a_baseline_is_not_beaten_by_itself(name: str) -> None:
    """Judged on the rows it is fitted on, it has a figure for metrics of its kind alone."""
    rows = rows_of(name, 500)
    kind = kind_for(name, rows.label)
    counts = counts_of(name, rows.label)
    found = kind.baselines(Judging(lambda: iter([rows]), lambda: iter([rows]), (8, 6), counts))
    assert found
    for figures in found.values():
        for metric, value in figures.items():
            assert metric in kind.metrics and value is not None and math.isfinite(value)
    logits = [constant.logit for constant in kind.constants(counts)]
    constant_NL = rows.label.new_tensor(logits).expand(len(rows.label), -1)
    metrics = kind.measure()
    metrics.update(constant_NL if len(logits) > 1 else constant_NL[:, 0], rows.label)
    own = metrics.compute()[kind.loss_metric]
    bounds = [one[kind.loss_metric] for one in found.values() if kind.loss_metric in one]
    assert own is not None and min(bounds) <= own * (1 + 1e-4)  # type: ignore[type-var]


@pytest.mark.parametrize("name", KIND_NAMES)
def test_names_of_metrics_and_of_the_kind_fit_together(name: str) -> None:
    kind = KINDS[name]
    assert {kind.loss_metric, kind.headline} <= {*kind.metrics}
    assert kind.loss_metric not in HIGHER_IS_BETTER
    assert kind.direction == ("max" if kind.headline in HIGHER_IS_BETTER else "min")
    nothing = {"labelled": 0, "mean": 0.0, "positive": 0, "min": 0.0, "max": 0.0}
    assert set(kind.undefined(nothing)) >= {kind.headline, kind.loss_metric}
    task = Task(name="t", kind=name, column="t", low=1.0, high=2.0)
    assert kind_of(task) == replace(kind, low=1.0, high=2.0)
    assert isinstance(kind_of(task), Kind)


@pytest.mark.parametrize("name", KIND_NAMES)
def test_a_logit_that_overflows_without_a_label_leaves_the_others_their_gradient(name: str) -> None:
    kind = kind_for(name)
    for extreme in (200.0, -200.0):
        logits = torch.tensor([0.5, extreme], requires_grad=True)
        labels = torch.tensor([LABELS[name][-1], NAN])
        kind.row_losses(spread(kind, logits), labels).sum().backward()
        assert logits.grad is not None and logits.grad[1] == 0 and logits.grad[0].isfinite()


def test_a_level_without_training_rows_among_many_has_a_finite_loss() -> None:
    counts = {"level 1.0": 3e7, "level 2.0": 0, "level 3.0": 7e7}
    levels, shares = KINDS["ordinal"].levels_of({"train": counts})
    kind = replace(KINDS["ordinal"], levels=levels, shares=shares)
    # At logit 0 each level has its share: half a row of 1e8.
    found = kind.row_loss(torch.zeros(1), torch.tensor([2.0]))
    assert found.item() == pytest.approx(-math.log(0.5 / 1e8), abs=0.01)
