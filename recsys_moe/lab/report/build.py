"""`recsys-moe report`: writes the report folder of a run or a comparison, atomically."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from recsys_moe.artifact.manifest import MANIFEST
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.files import Kind, check_out, read_object
from recsys_moe.folders import replacing_folder
from recsys_moe.lab.report.comparison import RESULTS
from recsys_moe.lab.report.comparison_report import comparison_report
from recsys_moe.lab.report.page import Report, Shown, document
from recsys_moe.lab.report.plots import Image, render
from recsys_moe.lab.report.run import Options, Progress
from recsys_moe.lab.report.run_report import run_report

logger = logging.getLogger("recsys_moe.report")

PAGE, FINDINGS, SOURCES, FIGURES = "report.html", "findings.json", "report.json", "figures"
REPORT = Kind(
    "a report",
    lambda folder: (
        read_object(folder / SOURCES)["kind"] in ("run", "comparison") and (folder / PAGE).is_file()
    ),
    (PAGE, FINDINGS, SOURCES, *(f"{FIGURES}/*.{ending}" for ending in ("svg", "png", "json"))),
)


def build_report(
    path: Path, out: Path, options: Options, *, overwrite: bool, progress: Progress
) -> Report:
    """Write the report on `path` to `out`, completely or not at all.

    Raises ConfigError for a setting or a folder in the way, DataError for what cannot be read.
    """
    check_out(out, REPORT, overwrite, {"RUN|COMPARISON": path, "--data": options.data})
    if _is_comparison(path):
        given = {"data": options.data, "split": options.split, "rows": options.rows}
        named = [f"--{name}" for name, value in given.items() if value is not None]
        if named:
            raise ConfigError(
                f"{path} is a comparison, which has no {', '.join(named)}; leave it out, "
                "or report one of its runs"
            )
        report = comparison_report(path, out)
    else:
        report = run_report(path, options, progress)
    write_report(report, out)
    return report


def _is_comparison(path: Path) -> bool:
    """Raises DataError when `path` is nothing that can be reported."""
    if (path / RESULTS).is_file() and (path / "plan.json").is_file():
        return True
    if (path / "plan.json").is_file():
        raise DataError(f"{path} has no {RESULTS} yet; wait for its first run to finish")
    if not any((folder / MANIFEST).is_file() for folder in (path, path / "model")):
        raise DataError(
            f"{path} is neither a run, a model nor a comparison "
            f"(no model/{MANIFEST}, no {RESULTS}); "
            "make one with `recsys-moe fit` or `recsys-moe compare`"
        )
    return False


def write_report(report: Report, out: Path) -> None:
    """Draw all figures and put the finished folder at `out`, replacing an older report there."""
    with replacing_folder(out) as folder:
        (folder / FIGURES).mkdir()
        images: dict[str, str] = {}
        for figure in (one for section in report.sections for one in section.figures.values()):
            logger.info("drawing %s", figure.name)
            images[figure.name] = _write_figure(folder / FIGURES, figure).inline
        (folder / PAGE).write_text(document(report, images), encoding="utf-8")
        _write_json(folder / FINDINGS, report.findings)
        _write_json(folder / SOURCES, report.provenance)


def _write_figure(folder: Path, figure: Shown) -> Image:
    image = render(figure.name, figure.draw, figure.data)
    (folder / f"{figure.name}.svg").write_bytes(image.svg)
    (folder / f"{figure.name}.png").write_bytes(image.png)
    content = {"title": figure.title, "sources": list(figure.sources), "data": figure.data}
    _write_json(folder / f"{figure.name}.json", content)
    return image


def _write_json(path: Path, content: Any) -> None:
    """A number that is not finite is null."""
    plain = to_jsonable_python(content, inf_nan_mode="null")
    path.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
