"""One pair in plain numpy has the logits of the model, whatever the router."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.artifact.calibration import Calibration, sigmoid
from recsys_moe.artifact.model_folder import load_artifact, save_artifact
from recsys_moe.config.settings import parse_config
from recsys_moe.inference import one_pair
from recsys_moe.inference.one_pair import (
    WORTH_DENSE,
    WORTH_IN_TENSORS,
    WORTH_SPARSE,
    OnePair,
    Rule,
    rule_of,
)
from recsys_moe.inference.pair_scores import PLAIN_LINKS
from recsys_moe.inference.predictor import Predictor
from recsys_moe.model.tasks import KINDS
from tests.inference.test_ranking import ITEMS, SETTINGS, USERS, model_with

ROUTERS: dict[str, dict[str, Any]] = {
    **SETTINGS,
    "moesart, warm": {"name": "moesart", "inference": "dense", "temperature": 0.5},
    "softmax, sparse": {"name": "softmax", "inference": "topk", "inference_k": 3},
    "topk, permuted": {"name": "topk", "permutation": True},
    "vmoe, k=1": {"name": "vmoe", "k": 1},
}
REPEATED = {
    *("moesart", "moesart, dense", "moesart, warm", "softmax", "softmax, sparse"),
    *("topk", "vmoe", "vmoe, k=1", "smoe"),
}
"""Those whose rule numpy repeats; the others run in tensors."""
DENSE = {"moesart, dense", "moesart, warm", "softmax", "softmax, sparse"}
"""Those that keep more than 2 of the 4 experts."""


@pytest.mark.parametrize("name", sorted(ROUTERS))
@torch.inference_mode()
def test_the_logits_of_a_pair_are_those_of_the_model(name: str) -> None:
    """The last user and item are the unseen ones. Logits are of size 1 to 10."""
    model = model_with(ROUTERS[name])
    if ROUTERS[name].get("inference") == "sampled":
        pytest.skip("a drawn routing is no function of the pair")
    one = OnePair(model)
    for user in range(USERS + 1):
        for item in (0, 7, ITEMS):
            expected = model(torch.tensor([user]), torch.tensor([item])).logits_BT[0]
            assert one.logits(user, item) == pytest.approx(expected.tolist(), rel=1e-6, abs=2e-6)


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_numpy_repeats_the_rules_that_it_is_said_to(name: str) -> None:
    model = model_with(ROUTERS[name])
    assert (rule_of(model.routers[0]) is not None) is (name in REPEATED)
    expected = WORTH_SPARSE if name in REPEATED else WORTH_IN_TENSORS
    if name in DENSE:
        expected = WORTH_DENSE
    assert OnePair(model).worth_up_to == expected


def test_a_rule_by_hand() -> None:
    logits_E = np.log(np.array([1, 4, 2, 4, 1], np.float32))  # softmax: twelfths
    assert Rule(2, "equal").choose(logits_E) == [(1, 1 / 2), (3, 1 / 2)]
    assert dict(Rule(3, "kept").choose(logits_E)) == pytest.approx(
        {1: 4 / 12, 3: 4 / 12, 2: 2 / 12}
    )
    renormalised = {1: 4 / 10, 3: 4 / 10, 2: 2 / 10}  # of 4 + 4 + 2
    assert dict(Rule(3, "renormalised").choose(logits_E)) == pytest.approx(renormalised)
    cold = {1: 16 / 38, 3: 16 / 38, 2: 4 / 38, 0: 1 / 38, 4: 1 / 38}  # temperature 1/2: squares
    assert dict(Rule(5, "kept", 0.5).choose(logits_E)) == pytest.approx(cold)
    for half in (2, 32):  # up to 16 entries any of numpy's sorts keeps the order of equals
        equals_E = np.repeat(np.array([1, 2], np.float32), half)
        assert [expert for expert, _ in Rule(2, "equal").choose(equals_E)] == [half, half + 1]


def test_large_logits_neither_overflow_nor_vanish() -> None:
    chosen = Rule(2, "kept").choose(np.array([300, 1000, 999, -1000], np.float32))
    odds = {1: 1 / (1 + np.exp(-1)), 2: np.exp(-1) / (1 + np.exp(-1))}
    assert dict(chosen) == pytest.approx(odds)


def test_plain_scores_are_those_in_tensors(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor.load(run)
    users, items = [1, "nobody", 3, "4"], [2, 3, "nothing", 5]
    plain = predictor.score_plain(users, items)
    monkeypatch.setattr(predictor._scorer, "one_by_one", 0)
    tensors = predictor.score(users, items)
    for task, values in tensors.tasks.items():
        assert plain.tasks[task] == pytest.approx(values.tolist(), abs=1e-6)
    assert list(plain.calibrated) == list(tensors.calibrated) == ["watch"]
    assert plain.calibrated["watch"] == pytest.approx(
        tensors.calibrated["watch"].tolist(), abs=1e-6
    )
    assert plain.unseen_user == tensors.unseen_user.tolist() == [False, True, False, False]
    assert plain.unseen_item == tensors.unseen_item.tolist() == [False, False, True, False]
    assert predictor.score_plain(users, items) == tensors.plain()
    assert predictor.score_plain(users, items, calibrate=False).calibrated == {}


def test_a_few_pairs_make_no_tensor(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor.load(run)
    predictor.warm_up()
    expected = predictor.score_plain([1, 2], [3, 4])
    for name in ("tensor", "from_numpy", "empty", "cat"):
        monkeypatch.delattr(torch, name)
    assert predictor.score_plain([1, 2], [3, 4]) == expected


def test_a_single_id_or_lists_of_unequal_length_are_refused(run: Path) -> None:
    predictor = Predictor.load(run)
    with pytest.raises(TypeError, match="list of ids"):
        predictor.score_plain("1", "2")
    with pytest.raises(ValueError, match="same length"):
        predictor.score_plain([1], [2, 3])
    assert predictor.score_plain([], []).tasks == {"watch": [], "rating": []}


@pytest.mark.parametrize("name", ["expert_choice", "moesart, sampled"])
def test_pairs_that_are_routed_together_are_never_taken_one_by_one(
    name: str, run: Path, tmp_path: Path
) -> None:
    trained = load_artifact(run)
    raw = trained.config.model_dump()
    raw["data"]["eval_batch_size"] = 40  # a multiple of its eval_group
    config = parse_config({**raw, "model": {**raw["model"], "router": SETTINGS[name]}})
    weights, out = trained.model.state_dict(), tmp_path / "model"
    save_artifact(out, weights, config, run / "model", seen=trained.seen, card={}, calibrations={})
    assert Predictor.load(out)._scorer.one_by_one == 0


def test_every_kind_of_task_has_a_plain_link() -> None:
    assert set(PLAIN_LINKS) == set(KINDS)
    for kind, link in PLAIN_LINKS.items():
        for logit in (-3.0, 0.0, 0.5):
            expected = float(KINDS[kind].link(torch.tensor(logit, dtype=torch.float64)))
            assert link(logit) == pytest.approx(expected, abs=1e-15)


def test_no_logit_overflows_the_sigmoid() -> None:
    assert [sigmoid(logit) for logit in (-1e9, -745.0, 0.0, 745.0, 1e9)] == [
        *(0.0, pytest.approx(0.0, abs=1e-300), 0.5, 1.0, 1.0)
    ]
    assert np.isnan(sigmoid(float("nan")))


@given(st.floats(-30, 30), st.integers(1, 12), st.integers(0, 99))
def test_the_calibration_of_one_number_is_that_of_a_tensor(
    logit: float, knots: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    x, y = (np.cumsum(random.uniform(0.01, 3, knots)) - 5 for _ in range(2))
    fit = Calibration(tuple(x.tolist()), tuple(y.tolist()), rows=9)
    for value in (logit, *fit.logits):
        tensor = fit.apply(torch.tensor([value], dtype=torch.float64))
        assert fit.apply_to_one(value) == pytest.approx(float(tensor), abs=1e-12)


@given(st.integers(0, 99), st.lists(st.floats(-8, 8), min_size=2, max_size=9))
def test_the_calibration_of_one_number_keeps_the_ranking(seed: int, logits: list[float]) -> None:
    random = np.random.default_rng(seed)
    x, y = (np.cumsum(random.uniform(0.01, 1, 9)) - 4 for _ in range(2))
    fit = Calibration(tuple(x.tolist()), tuple(y.tolist()), rows=9)
    near = [np.nextafter(knot, -9) for knot in fit.logits]
    found = [fit.apply_to_one(float(value)) for value in sorted([*logits, *near, *fit.logits])]
    assert found == sorted(found)


def test_a_calibration_makes_its_tensors_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = Calibration((-1.0, 0.0, 2.0), (-2.0, 1.0, 2.0), rows=9)
    first = fit.apply(torch.tensor([0.5]))
    monkeypatch.delattr(Calibration, "_new_knots")
    assert torch.equal(fit.apply(torch.tensor([0.5])), first)
    with pytest.raises(AttributeError):
        fit.apply(torch.tensor([0.5], dtype=torch.float64))  # another type: others


def test_the_threshold_lets_many_rows_take_the_tensors(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor.load(run)
    taken: list[int] = []
    monkeypatch.setattr(
        one_pair.OnePair, "logits", lambda self, user, item: taken.append(user) or [0.0, 0.0]
    )
    predictor.score_plain(list(range(WORTH_SPARSE + 1)), [1] * (WORTH_SPARSE + 1))
    assert taken == []
    predictor.score_plain(list(range(WORTH_SPARSE)), [1] * WORTH_SPARSE)
    assert len(taken) == WORTH_SPARSE
