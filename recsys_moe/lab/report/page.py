"""The report as a document: one HTML file that needs nothing else, and the files behind it.

Every text is escaped on its way in: names of tasks, routers, genres and folders are other people's.
A content security policy in the page forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from string import Template
from typing import Any

from recsys_moe.lab.report.findings import Finding, in_short

STATIC = resources.files("recsys_moe.lab.report") / "static"


class Html(str):
    """Text that is markup already; everything else is escaped."""


@dataclass(frozen=True)
class Shown:
    """A figure with what a reader needs to know."""

    name: str
    """Of its files, without ending."""
    title: str
    reading: str
    """A sentence on how to read it."""
    alt: str
    """The finding, for those who do not see the figure."""
    sources: Sequence[str]
    """Files of the run folder that the numbers are from."""
    data: Any
    draw: Callable[[Any], Any]


@dataclass(frozen=True)
class Section:
    key: str
    title: str
    intro: str
    figures: Sequence[Shown] = ()
    extra: Html = Html("")


@dataclass(frozen=True)
class Report:
    title: str
    subtitle: str
    tiles: Sequence[tuple[str, str, str]]
    """The key numbers: name, value, and what it means."""
    facts: Mapping[str, str]
    findings: Sequence[Finding]
    sections: Sequence[Section]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where the numbers come from; written to report.json."""


def escaped(text: object) -> str:
    return text if isinstance(text, Html) else html.escape(str(text))


def element(name: str, content: object = "", **attributes: object) -> Html:
    """<name a="b">content</name>, all escaped; `class_` and `for_` without the underscore."""
    marks = "".join(
        f' {k.rstrip("_").replace("_", "-")}="{html.escape(str(v))}"' for k, v in attributes.items()
    )
    return Html(f"<{name}{marks}>{escaped(content)}</{name}>")


def joined(parts: Iterable[object], between: str = "\n") -> Html:
    return Html(between.join(escaped(part) for part in parts))


def table(header: Sequence[object], rows: Iterable[Sequence[object]], caption: str) -> Html:
    """A table that scrolls sideways in a narrow window; the first cell of a row heads it."""
    head = joined((element("th", cell, scope="col") for cell in header), "")
    lines = [
        joined([element("th", first, scope="row"), *(element("td", cell) for cell in rest)], "")
        for first, *rest in rows
    ]
    body = joined(element("tr", line) for line in lines)
    parts = [element("caption", caption), element("thead", element("tr", head))]
    content = element("table", joined([*parts, element("tbody", body)]))
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)


def document(report: Report, images: Mapping[str, str]) -> str:
    """The page. `images`: inline SVG by the name of the figure."""
    template = Template((STATIC / "report.html").read_text(encoding="utf-8"))
    return template.substitute(
        css=(STATIC / "report.css").read_text(encoding="utf-8"),
        title=escaped(report.title),
        subtitle=escaped(report.subtitle),
        verdict=escaped(in_short(report.findings)),
        tiles=joined(_tile(*tile) for tile in report.tiles),
        findings=_findings(report),
        facts=_facts(report.facts),
        contents=joined(
            element("li", element("a", section.title, href=f"#{section.key}"))
            for section in report.sections
        ),
        sections=joined(_section(section, images) for section in report.sections),
    )


def _tile(name: str, value: str, meaning: str) -> Html:
    parts = (
        element("dt", name),
        element("dd", value, class_="value"),
        element("dd", meaning, class_="quiet"),
    )
    return element("div", joined(parts, ""), class_="tile")


def _facts(facts: Mapping[str, str]) -> Html:
    pairs = (joined([element("dt", k), element("dd", v)], "") for k, v in facts.items())
    return joined(element("div", pair) for pair in pairs)


def _findings(report: Report) -> Html:
    shown = {figure.name for section in report.sections for figure in section.figures}
    words = {"warning": "Look at this", "note": "Note"}
    lines = []
    for finding in report.findings:
        parts: list[object] = [element("b", words[finding.level]), " ", finding.text]
        if finding.figure in shown:
            parts += [" ", element("a", "see the figure", href=f"#figure-{finding.figure}")]
        lines.append(element("li", joined(parts, ""), class_=finding.level))
    return joined(lines) or element("li", "Nothing stands out.", class_="note")


def _section(section: Section, images: Mapping[str, str]) -> Html:
    heading = element("h2", section.title, id=f"{section.key}-title")
    parts = [heading, element("p", section.intro), section.extra]
    parts += [_figure(figure, images[figure.name]) for figure in section.figures]
    content = joined(parts)
    return element("section", content, id=section.key, aria_labelledby=f"{section.key}-title")


def _figure(figure: Shown, image: str) -> Html:
    picture = element("div", Html(image), role="img", aria_label=figure.alt, class_="picture")
    files = f"figures/{figure.name}.json, .svg and .png"
    caption = joined(
        [
            element("p", figure.reading),
            element("p", element("b", figure.alt)),
            element("p", f"From {', '.join(figure.sources)}. Data: {files}.", class_="quiet"),
        ]
    )
    parts = [element("h3", figure.title), picture, element("figcaption", caption)]
    return element("figure", joined(parts), id=f"figure-{figure.name}")
