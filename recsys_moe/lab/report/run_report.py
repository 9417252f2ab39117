"""The report of one run."""

from __future__ import annotations

from pathlib import Path

from recsys_moe.lab.report.findings import worst_first
from recsys_moe.lab.report.page import Report
from recsys_moe.lab.report.run_figures import (
    Options,
    Progress,
    provenance,
    run_figures,
    run_findings,
)
from recsys_moe.lab.report.run_sections import facts, sections, tiles


def run_report(path: Path, options: Options, progress: Progress) -> Report:
    """Raises ConfigError and DataError."""
    found = run_figures(path, options, progress)
    what = "all" if found.sample.is_whole else f"a sample of {found.sample.rows:,}"
    rows = f"{what} of the {found.sample.split_rows:,} rows"
    return Report(
        title=f"Run {found.name}",
        subtitle=f"{found.artifact.schema.name}, {options.split} split ({rows})",
        tiles=tiles(found),
        facts=facts(found),
        findings=worst_first(run_findings(found)),
        sections=sections(found),
        provenance=provenance(path, found, options),
    )
