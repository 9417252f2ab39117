"""The sentences: when each is said, and with which numbers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from recsys_moe.lab.report import findings
from recsys_moe.lab.report.experts import ExpertLoad, Likeness
from recsys_moe.lab.report.findings import Finding, in_short, percent, slug, worst_first
from recsys_moe.lab.report.learning import Consistency, LearningCurves
from recsys_moe.lab.report.page import breakable, figure, reach
from recsys_moe.lab.report.quality import Quality, Reliability, Roc
from tests.conftest import tells


def texts(found: Iterable[Finding]) -> list[str]:
    return [f"{finding.level}: {finding.text}" for finding in found]


def load(watch: list[float], rating: list[float], **changed: list[int]) -> ExpertLoad:
    shares = {"watch": watch, "rating": rating}
    either = [max(pair) for pair in zip(watch, rating, strict=True)]
    lists = {"idle": [], "light": [], **changed}
    return ExpertLoad(100, shares, shares, shares, either, {"watch": 0.25, "rating": 0.25}, **lists)


def test_idle_experts_are_one_sentence_with_their_shares_and_the_even_one() -> None:
    shares = [0.5, 0.499, 0.001, 0.0], [0.5, 0.5, 0, 0]
    assert texts(findings.expert_findings(load(*shares, idle=[2, 3]))) == [
        "warning: Idle: experts 2 and 3, visited by 0.1% and 0.0% of examples "
        "(an even share would be 25.0% per task)."
    ]


def test_experts_that_some_tasks_spare_are_one_note() -> None:
    found = texts(findings.expert_findings(load([0.5, 0.48, 0.02], [0.48, 0.02, 0.5])))
    assert found == [
        "note: Not used by every task: watch rarely uses expert 2 (2.0%); "
        "rating rarely uses expert 1 (2.0%)."
    ]


def test_dominant_experts_and_rows_of_nobody_are_a_sentence_each() -> None:
    found = texts(findings.expert_findings(load([0.6, 0.1, 0.1], [0.1, 0.7, 0.2])))
    assert found == [
        "warning: First choice for most examples: expert 0 (60.0% for watch) and expert 1 "
        "(70.0% for rating).",
        "warning: Examples without an expert: 20.0% for watch.",
    ]


def test_twins_are_counted_beyond_the_first_three() -> None:
    three = [(1, 4, 0.987), (0, 2, 0.98), (1, 2, 0.97)]
    said = "Nearly identical outputs (cosine): experts 1 and 4 (0.987), 0 and 2 (0.980), "
    for more, end in ((0, "."), (1, ", and 1 more pair."), (2, ", and 2 more pairs.")):
        alike = Likeness(9, [], three + [(0, 1, 0.96)] * more, [])
        assert texts(findings.likeness_findings(alike)) == [f"warning: {said}1 and 2 (0.970){end}"]
    (silent,) = texts(findings.likeness_findings(Likeness(9, [], [], [3, 5])))
    assert silent == "warning: Output 0 for every example: experts 3 and 5."


def test_routing_that_still_moves_is_said_once_for_all_tasks() -> None:
    same = {"watch": [0.5, 0.79], "rating": [0.1, 0.8], "third": [0.5, 0.6]}
    assert texts(findings.consistency_findings(Consistency([2, 3], same, {}, 9))) == [
        "warning: Routing still changes: in epoch 3 only 79.0% of examples for watch and "
        "60.0% of examples for third kept their top expert."
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
    assert tells(rose, "loss ... 2.0000 (epoch 1) ... 2.0500 (epoch 2)")


def test_guessing_and_probabilities_that_are_off() -> None:
    def said(auc: float, **errors: float) -> list[str]:
        shown = Roc("watch", 9, 4, auc, [], []), Reliability("watch", 9, {}, errors)
        return texts(findings.quality_findings("watch", Quality(*shown, []), []))

    assert said(0.56, raw=0.05) == []
    assert said(0.54, raw=0.01) == [
        "warning: watch is barely better than random: AUC 0.540 (random is 0.5)."
    ]
    assert said(0.9, raw=0.08)[0].startswith(
        "warning: Probabilities of watch differ from observed frequencies by 8.0 points"
    )
    assert said(0.9, raw=0.08, calibrated=0.01) == []


def test_a_missed_baseline_is_said_and_guessing_then_not_once_more() -> None:
    quality = Quality(Roc("watch", 9, 4, 0.54, [], []), None, [])
    behind = ["val: watch AUC 0.5400 does not beat the popularity baseline 0.7000"]
    (found,) = findings.quality_findings("watch", quality, behind)
    assert texts([found]) == [f"warning: {behind[0]}."]
    assert found.figure == "roc-watch"
    (found,) = findings.quality_findings("a rating", Quality(None, None, []), ["behind"])
    assert found.figure == f"error-{slug('a rating')}"


def test_warnings_come_first_and_are_counted() -> None:
    note, warning = Finding("note", "b", ""), Finding("warning", "a", "")
    assert worst_first([note, warning, note]) == [warning, note, note]
    assert in_short([note, warning]) == "1 warning"
    assert in_short([warning] * 2) == "2 warnings"
    assert in_short([note]) == "no warnings"


def test_names_of_files_are_plain_and_stay_apart() -> None:
    assert slug("watch") == "watch"
    odd = ["../a b", "../a_b", "a/b", "", "\u00e9"]
    assert len({slug(name) for name in odd}) == len(odd)
    assert all(set(slug(name)) <= set(".-_") | set(map(chr, range(48, 123))) for name in odd)
    assert not any("/" in slug(name) or ".." in slug(name) for name in odd)


def test_numbers_and_names_in_words() -> None:
    shares = [0, 1, 0.1234, 0.0005, 0.00049, 0.00001, 1e-7]
    words = ["0.0%", "100.0%", "12.3%", "0.1%", "0.05%", "0.001%", "less than 0.001%"]
    assert [percent(share) for share in shares] == words
    experts = ["expert 9", "experts 9 and 14", "experts 1, 2 and 3"]
    assert [findings.named(some) for some in ([9], [9, 14], [1, 2, 3])] == experts
    assert [reach(ends) for ends in ((2, 2), (2, 1500))] == ["2", "2 to 1,500"]
    assert [figure(value) for value in (0.12345, 9.5, 189.8976)] == ["0.1235", "9.5000", "189.9"]
    assert breakable("a_b<c>") == "a_<wbr>b&lt;c&gt;"
