"""The sentences: when each is said, and with which numbers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from recsys_moe.lab.report import findings
from recsys_moe.lab.report.experts import ExpertLoad, Likeness
from recsys_moe.lab.report.findings import Finding, in_short, percent, slug, worst_first
from recsys_moe.lab.report.learning import Consistency, LearningCurves
from recsys_moe.lab.report.quality import Quality, Reliability, Roc


def texts(found: Iterable[Finding]) -> list[str]:
    return [f"{finding.level}: {finding.text}" for finding in found]


def load(watch: list[float], rating: list[float], **changed: list[int]) -> ExpertLoad:
    shares = {"watch": watch, "rating": rating}
    either = [max(pair) for pair in zip(watch, rating, strict=True)]
    lists = {"idle": [], "light": [], **changed}
    return ExpertLoad(100, shares, shares, shares, either, {"watch": 0.25, "rating": 0.25}, **lists)


def test_an_idle_expert_is_said_with_its_share_and_the_even_one() -> None:
    found = texts(findings.expert_findings(load([0.5, 0.499, 0.001], [0.5, 0.5, 0], idle=[2])))
    assert found == [
        "warning: Expert 2 is idle: it is visited by 0.1% of examples "
        "(an even share would be 25.0% per task)."
    ]


def test_an_expert_idle_for_one_task_only_is_a_note() -> None:
    found = texts(findings.expert_findings(load([0.5, 0.48, 0.02], [0.3, 0.3, 0.4])))
    assert found == ["note: Hardly visited for watch, but used elsewhere: expert 2 (2.0%)."]


def test_a_dominant_expert_and_rows_of_nobody_are_said() -> None:
    found = texts(findings.expert_findings(load([0.6, 0.1, 0.1], [0.4, 0.3, 0.3])))
    assert found == [
        "warning: Expert 0 is the first choice of 60.0% of examples for watch.",
        "warning: 20.0% of examples are taken by no expert for watch.",
    ]


def test_twins_and_silent_experts() -> None:
    found = texts(findings.likeness_findings(Likeness(9, [], [(1, 4, 0.987)], [3])))
    assert found == [
        "warning: Experts 1 and 4 are nearly identical: the cosine of their outputs is 0.987.",
        "warning: Expert 3 answers 0 to every example.",
    ]


def test_routing_that_still_moves_is_said() -> None:
    moving = Consistency([2, 3], {"watch": [0.5, 0.79], "rating": [0.1, 0.8]}, {}, 9)
    assert texts(findings.consistency_findings(moving)) == [
        "warning: Routing for watch is not settled: only 79.0% of examples kept their top expert "
        "in epoch 3."
    ]


@pytest.mark.parametrize(
    ("losses", "best", "asked", "words"),
    [
        ([3.0, 2.0], 2, 2, "still falling in the last epoch (2)"),
        ([3.0, 2.0], 2, 5, None),  # it stopped of its own accord
        ([2.0, 2.03], 1, 5, None),
        ([2.0, 2.05], 1, 5, "rose from 2.0000 (epoch 1) to 2.0500 (epoch 2)"),
    ],
)
def test_training_too_short_or_too_long(
    losses: list[float], best: int, asked: int, words: str | None
) -> None:
    curves = LearningCurves([1, 2], losses, losses, {}, best)
    found = texts(findings.learning_findings(curves, asked))
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_the_monitored_metric_is_named_and_the_lowest_loss_has_its_own_epoch() -> None:
    curves = LearningCurves([1, 2], [3.0, 2.0], [2.0, 2.05], {}, 2, "watch/auc")
    falling, rose = texts(findings.learning_findings(curves, 2))
    assert "The validation watch/auc was still improving in the last epoch (2)" in falling
    assert "loss rose from 2.0000 (epoch 1) to 2.0500 (epoch 2); the model is that of" in rose


def test_guessing_and_probabilities_that_are_off() -> None:
    def said(auc: float, **errors: float) -> list[str]:
        shown = Roc("watch", 9, 4, auc, [], []), Reliability("watch", 9, {}, errors)
        one = Quality(*shown, [], rmse=None, deviation=0.5)
        return texts(findings.quality_findings("watch", one))

    assert said(0.56, raw=0.05) == []
    assert said(0.54, raw=0.01) == [
        "warning: watch is hardly better than chance: AUC 0.540 (0.5 is guessing)."
    ]
    assert said(0.9, raw=0.08)[0].startswith(
        "warning: Probabilities of watch are off by 8.0 points"
    )
    assert said(0.9, raw=0.08, calibrated=0.01) == []


def test_a_regression_is_held_against_the_mean() -> None:
    better, same = (Quality(None, None, [], rmse, deviation=1.0) for rmse in (0.9, 1.0))
    assert texts(findings.quality_findings("rating", better)) == []
    assert texts(findings.quality_findings("rating", same)) == [
        "warning: rating is no better than always predicting the mean: RMSE 1.000 against 1.000."
    ]


def test_warnings_come_first_and_are_counted() -> None:
    note, warning = Finding("note", "b", ""), Finding("warning", "a", "")
    assert worst_first([note, warning, note]) == [warning, note, note]
    assert in_short([note, warning]) == "1 thing stands out."
    assert in_short([warning] * 2) == "2 things stand out."
    assert in_short([note]) == "Nothing stands out."


def test_small_shares_keep_a_digit() -> None:
    shares = [0, 1, 0.1234, 0.0005, 0.00049, 0.00001, 1e-7]
    words = ["0.0%", "100.0%", "12.3%", "0.1%", "0.05%", "0.001%", "less than 0.001%"]
    assert [percent(share) for share in shares] == words


def test_several_experts_are_in_the_plural() -> None:
    assert [findings.named(experts) for experts in ([9], [9, 14], [1, 2, 3])] == [
        "expert 9",
        "experts 9 and 14",
        "experts 1, 2 and 3",
    ]


def test_names_of_files_are_plain_and_stay_apart() -> None:
    assert slug("watch") == "watch"
    odd = ["../a b", "../a_b", "a/b", "", "\u00e9"]
    assert len({slug(name) for name in odd}) == len(odd)
    assert all(set(slug(name)) <= set(".-_") | set(map(chr, range(48, 123))) for name in odd)
    assert not any("/" in slug(name) or ".." in slug(name) for name in odd)
