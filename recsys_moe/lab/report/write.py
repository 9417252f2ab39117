"""The files of a report: report.html, figures/, findings.json, report.json; all of them or none."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from recsys_moe.errors import ConfigError
from recsys_moe.files import replacing_folder
from recsys_moe.lab.report.page import Report, Shown, document
from recsys_moe.lab.report.plots import Image, render

logger = logging.getLogger("recsys_moe.report")

PAGE, FINDINGS, SOURCES, FIGURES = "report.html", "findings.json", "report.json", "figures"


def check_out(out: Path, overwrite: bool) -> None:
    """Raise ConfigError when something is at `out` that must stay."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise ConfigError(
            f"--out {out} exists; choose another folder or replace it with --overwrite"
        )
    if not (out / PAGE).is_file() or not (out / SOURCES).is_file():
        raise ConfigError(f"--out {out} is not a report; --overwrite will not delete it")


def write_report(report: Report, out: Path) -> None:
    """Draw all figures and put the finished folder at `out`, replacing an older report there."""
    with replacing_folder(out) as folder:
        (folder / FIGURES).mkdir()
        images: dict[str, str] = {}
        for figure in (
            figure for section in report.sections for figure in section.figures.values()
        ):
            logger.info("drawing %s", figure.name)
            images[figure.name] = _write_figure(folder / FIGURES, figure).inline
        (folder / PAGE).write_text(document(report, images), encoding="utf-8")
        _write_json(folder / FINDINGS, [asdict(finding) for finding in report.findings])
        _write_json(folder / SOURCES, dict(report.provenance))


def _write_figure(folder: Path, figure: Shown) -> Image:
    image = render(figure.name, figure.draw, figure.data)
    (folder / f"{figure.name}.svg").write_bytes(image.svg)
    (folder / f"{figure.name}.png").write_bytes(image.png)
    content = {"title": figure.title, "sources": list(figure.sources), "data": figure.data}
    _write_json(folder / f"{figure.name}.json", content)
    return image


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(plain(content), indent=1) + "\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """Data classes and what they hold as JSON has it; a number that is not finite is null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(vars(value))
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
