"""`recsys-moe report`."""

from __future__ import annotations

import json
import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recsys_moe.cli.options import Json, MovedData, Overwrite, opt

if TYPE_CHECKING:
    from collections.abc import Callable

    from recsys_moe.lab.report.page import Report

logger = logging.getLogger("recsys_moe.report")


def report(
    path: Annotated[
        Path,
        typer.Argument(metavar="RUN|COMPARISON", help="Folder of a run, a model or a comparison."),
    ],
    out: Annotated[Path, opt("Folder to create; open its report.html.")],
    data: MovedData = None,
    split: Annotated[str | None, opt("Split: train, val or test; test by default.")] = None,
    rows: Annotated[
        int | None, opt("Maximum number of rows to analyse; 100000 by default.", min=1)
    ] = None,
    seed: Annotated[int, opt("Seed of the samples that are drawn.", min=0)] = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write an HTML report about a run or a comparison."""
    logger.info("loading torch and matplotlib ...")
    from dataclasses import asdict

    from recsys_moe.lab.report.build import build_report
    from recsys_moe.lab.report.run import Options

    options = Options(data=data, split=split, rows=rows, seed=seed)
    page = build_report(path, out, options, overwrite=overwrite, progress=_progress)
    if as_json:
        print(json.dumps([asdict(finding) for finding in page.findings]))
        return
    print(f"{out / 'report.html'}: {_words(page)}")


def _progress(title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    from recsys_moe.progress import row_progress

    logger.info("%s: %s rows", title, f"{total:,}")
    return row_progress(title, total)


def _words(page: Report) -> str:
    """The findings, one line each."""
    from recsys_moe.lab.report.findings import in_short

    lines = [f"  {finding.level}: {finding.text}" for finding in page.findings]
    return "\n".join([in_short(page.findings), *lines])
