"""The lines of a table of research/results, and of the list of tests below it."""

from __future__ import annotations

import statistics

from recsys_moe.lab.compare.results import Column, is_bold
from recsys_moe.lab.compare.significance import Spread
from recsys_moe.lab.compare.tables import MARKDOWN, NONE, written
from research.results_rows import Group, Router

COSTS = [
    Column("best_epoch", "best epoch", None, 1),
    Column("experts_training", "experts, training", None, 2),
    Column("experts_inference", "inference", None, 2),
]


def table(group: Group, reach: float | None) -> list[list[str]]:
    """The header, a rule, and a line per router."""
    header = ["router", *(column.title for column in group.columns), "seeds"]
    header += [*(column.title for column in COSTS), "s/epoch"]
    header += [f"epochs to {reach:g}", "minutes"] if reach is not None else []
    header += ["above the best", "above the best k-sparse"][: len(group.references)]
    header += [f"paper: {', '.join(c.title for c in group.columns)}"] if group.paper else []
    bold = {(t.best, t.column) for c in group.columns for t in group.tests(c) if is_bold(t)}
    lines = [
        [
            f"`{router.label}`",
            *(
                written(router.spread(c.name), c, (router.label, c.name) in bold, MARKDOWN)
                for c in group.columns
            ),
            str(len(router.runs)),
            *(mean_of(router, column) for column in COSTS),
            NONE if router.seconds is None else f"{router.seconds:.0f}",
            *(arrival(router, reach) if reach is not None else ()),
            *(above(router, reference) for reference in group.references),
            *([paper_of(router, group)] if group.paper else ()),
        ]
        for router in group.routers
    ]
    return [header, ["---"] * len(header), *lines]


def mean_of(router: Router, column: Column) -> str:
    found = router.spread(column.name)
    return NONE if found is None else f"{found.mean:.{column.digits}f}"


def arrival(router: Router, loss: float) -> tuple[str, str]:
    """Mean epoch at which seeds reach a validation loss, and the minutes until its end."""
    epochs = router.reached(loss)
    reached = [epoch for epoch in epochs if epoch is not None]
    if not reached:
        return ("never" if epochs else NONE), NONE
    mean = statistics.fmean(reached)
    seeds = len(router.runs)
    some = f" ({len(reached)} of {seeds})" if len(reached) < seeds else ""
    minutes = NONE if router.seconds is None else f"{mean * router.seconds / 60:.0f}"
    return f"{mean:.1f}{some}", minutes


def above(router: Router, reference: Router) -> str:
    """`+0.0091 (3.6)`: of mean losses, and in standard errors of the difference."""
    if router is reference:
        return NONE
    one, other = router.spread("loss"), reference.spread("loss")
    assert one is not None and other is not None
    difference = one.mean - other.mean
    error = ((one.standard_error or 0) ** 2 + (other.standard_error or 0) ** 2) ** 0.5
    is_known = error and None not in (one.standard_error, other.standard_error)
    return f"{difference:+.4f}" + (f" ({abs(difference) / error:.1f})" if is_known else "")


def paper_of(router: Router, group: Group) -> str:
    figures: dict[str, Spread] = group.paper.get(router.name, {})
    cells = [f"{figures[c.name].mean:.4f}" for c in group.columns if c.name in figures]
    return ", ".join(cells) or NONE


def verdicts(group: Group) -> list[str]:
    """Per column the best k-sparse router and p of its lead over each of the others."""
    lines = []
    for column in group.columns:
        tests = [test for test in group.tests(column) if test.unpaired_holm is not None]
        if tests:
            others = ", ".join(f"`{test.other}` {test.unpaired_holm:.2g}" for test in tests)
            lines.append(f"{column.title}: `{tests[0].best}` is the best k-sparse one; p {others}.")
    return lines
