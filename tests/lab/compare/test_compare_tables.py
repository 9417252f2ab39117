"""The tables of a comparison."""

from __future__ import annotations

import csv
import re
from dataclasses import replace

import pytest

from recsys_moe.lab.compare.columns import Column
from recsys_moe.lab.compare.results import Group, Results, Row, RunRecord, TTest
from recsys_moe.lab.compare.significance import Spread
from recsys_moe.lab.compare.tables import csv_text, latex, markdown, notes_of

COLUMNS = [
    Column("loss", "loss", "lower", 4),
    Column("seconds_per_epoch", "s/epoch", None, 1),
    Column("parameters", "parameters", None, 0),
]


def row(router: str, loss: Spread, *, bold: bool = False, sparse: bool = True) -> Row:
    cells = {"loss": loss, "parameters": Spread(2471970.0, 0.0, loss.n)}
    experts = "2" if sparse else "dense to sparse"
    return Row(
        f"{router}-0.9_0.1", router, experts, sparse, loss.n, cells, ("loss",) if bold else ()
    )


def example() -> Results:
    rows = [
        row("moesart", Spread(0.40893, 0.00021, 5), bold=True),
        row("expert_choice", Spread(0.44938, None, 1)),
        row("comet", Spread(0.4, 0.001, 5), sparse=False),
    ]
    names = [row.contender for row in rows]
    test = TTest("loss", names[0], names[1], True, 0.012, 0.024, 0.2, None)
    group = Group({"watch": 0.9, "rating": 0.1}, rows, [test])
    return Results("mine", "time", "test", (0, 1, 2, 3, 4), COLUMNS, [group], [], ["a-seed4"])


@pytest.mark.parametrize(
    ("monitors", "words"),
    [
        (["loss", "loss"], "each run at its epoch with the lowest validation loss."),
        (["watch/auc"], "each run at its epoch with the best validation watch/auc."),
        (
            ["watch/auc", "loss"],
            "each run at its epoch with the best validation loss or watch/auc.",
        ),
    ],
)
def test_a_table_says_which_metric_chose_the_epochs(monitors: list[str], words: str) -> None:
    runs = [RunRecord("a", 0, "a", "a", 1, 1, {}, {}, monitor) for monitor in monitors]
    assert any(note.endswith(words) for note in notes_of(replace(example(), runs=runs)))


def test_markdown_has_a_line_per_router_with_the_best_in_bold() -> None:
    lines = [line for line in markdown(example()).splitlines() if line.startswith("| ")]
    assert lines == [
        "| router | k-sparse | runs | loss | s/epoch | parameters |",
        "| --- | --- | --- | --- | --- | --- |",
        "| moesart | yes | 5 | **0.4089 +- 0.0002** | - | 2,471,970 |",
        "| expert_choice | yes | 1 | 0.4494 | - | 2,471,970 |",
        "| comet | dense to sparse | 5 | 0.4000 +- 0.0010 | - | 2,471,970 |",
    ]


def test_the_notes_say_which_test_gave_what_and_what_is_missing() -> None:
    text = " ".join(notes_of(example()))
    assert (
        "loss: moesart against expert_choice: unpaired p 0.012 (Holm 0.024), "
        "paired p 0.2 (Holm undefined), bold." in text
    )
    assert "Not finished and not counted: a-seed4." in text


def test_one_seed_is_said_to_be_no_test_in_place_of_values_that_are_none() -> None:
    results = example()
    (group,) = results.groups
    untested = replace(group.tests[0], unpaired=None, unpaired_holm=None, paired=None)
    runs = [RunRecord("a", 0, "a", "a", 1, 1, {}, {}, "loss")]
    results = replace(results, runs=runs, groups=[replace(group, tests=[untested])])
    text = " ".join(notes_of(results))
    assert "undefined" not in text and "Only one seed: no spread and no test." in text


def test_latex_escapes_and_has_as_many_cells_in_each_line() -> None:
    text = latex(example())
    assert r"expert\_choice & yes & 1 & 0.4494 & - & 2,471,970 \\" in text
    assert r"\textbf{0.4089 $\pm$ 0.0002}" in text
    assert text.count(r"\begin{tabular}{lrrrrr}") == 1
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {5}
    caption = next(line for line in text.splitlines() if line.startswith(r"\caption"))
    assert not re.search(r"(?<![\\])[_%#]|[^$]<", caption)


def test_marks_of_the_languages_in_a_label_are_escaped() -> None:
    results = example()
    (group,) = results.groups
    named = replace(group, rows=[replace(group.rows[0], router="top|k^2"), *group.rows[1:]])
    results = replace(results, groups=[named])
    assert r"| top\|k^2 | yes |" in markdown(results)
    assert r"top|k\textasciicircum{}2 & yes" in latex(results)


def test_csv_is_unrounded_and_empty_where_there_is_nothing() -> None:
    first, second, _ = csv.DictReader(csv_text(example()).splitlines())
    assert (first["loss.mean"], first["loss.standard_error"]) == ("0.40893", "0.00021")
    assert (first["loss.bold"], second["loss.bold"]) == ("True", "False")
    assert (second["loss.standard_error"], second["seconds_per_epoch.mean"]) == ("", "")
    assert (first["weight.watch"], first["runs"]) == ("0.9", "5")
