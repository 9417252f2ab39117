"""Renders the report as one self-contained HTML file.

templates/ escape every value: names of tasks, routers, genres and folders are untrusted. A content
security policy in the page forbids scripts and external resources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from recsys_moe.kinds import HIGHER_IS_BETTER, KINDS, metric_title
from recsys_moe.lab.report.findings import Finding, in_short, join, named, percent


@dataclass(frozen=True)
class Shown:
    """A figure; the template of its section has its text."""

    name: str
    """Of its files, without ending."""
    title: str
    sources: Sequence[str]
    """Files that the numbers come from."""
    data: Any
    draw: Callable[[Any], Any]


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    key: str
    title: str
    template: str
    """File below templates/."""
    figures: Mapping[str, Shown] = field(default_factory=dict)
    """By the name in the template."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Other values for the template."""
    findings: Sequence[Finding] = ()


@dataclass(frozen=True)
class Report:
    title: str
    subtitle: str
    findings: Sequence[Finding]
    sections: Sequence[Section]
    summary: str
    """File below templates/ with the key numbers and the facts, as macros."""
    values: Mapping[str, Any]
    """Values for the summary."""
    provenance: Mapping[str, Any]
    """Where the numbers come from; written to report.json."""


TEMPLATES = Environment(
    loader=PackageLoader("recsys_moe.lab.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def breakable(name: str) -> Markup:
    """A name that may wrap after its underscores."""
    return Markup("_<wbr>").join(name.split("_"))


def figure(value: float) -> str:
    """A number with four decimals, or five digits if it is large."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.5g}"


def reach(ends: tuple[int, int]) -> str:
    """2 to 5, or 2 alone."""
    low, high = ends
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def by_task(values: Mapping[str, float], write: str = "") -> str:
    """0.71 for watch and 0.30 for rating; as percentages without a format of `%`."""
    return join(f"{write % v if write else percent(v)} for {task}" for task, v in values.items())


TEMPLATES.filters["metric_title"] = metric_title
TEMPLATES.tests["higher_is_better"] = HIGHER_IS_BETTER.__contains__
TEMPLATES.filters |= {
    "headline": lambda task: KINDS[task.kind].headline,
    "by_task": by_task,
    "listed": join,
    "named_experts": named,
    "percent": percent,
    "breakable": breakable,
    "figure": figure,
    "reach": reach,
}


def document(report: Report, images: Mapping[str, str]) -> str:
    """The page. `images`: inline SVG by the name of the figure."""
    verdict, page = in_short(report.findings), TEMPLATES.get_template("report.html")
    return page.render(report=report, verdict=verdict, images=images)
