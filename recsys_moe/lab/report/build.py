"""`recsys-moe report`: a run or a comparison in, a folder with a page out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from recsys_moe.artifact.model_folder import MANIFEST
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.lab.report.comparison import RESULTS
from recsys_moe.lab.report.comparison_report import comparison_report
from recsys_moe.lab.report.page import Report
from recsys_moe.lab.report.run_figures import Options, Progress
from recsys_moe.lab.report.run_report import run_report
from recsys_moe.lab.report.specialisation import Projection
from recsys_moe.lab.report.write import check_out, write_report


@dataclass(frozen=True)
class Asked:
    """The command line; None is the default."""

    path: Path
    out: Path
    data: Path | None = None
    split: str | None = None
    rows: int | None = None
    seed: int = 0
    map: str = "pca"


def build_report(asked: Asked, *, overwrite: bool, progress: Progress) -> Report:
    """Write the report to `asked.out`, completely or not at all.

    Raises ConfigError for a setting or a folder in the way, DataError for what cannot be read.
    """
    check_out(asked.out, overwrite)
    if _is_comparison(asked.path):
        _refuse_settings_of_runs(asked)
        report = comparison_report(asked.path, asked.out)
    else:
        report = run_report(asked.path, _options(asked), progress)
    write_report(report, asked.out)
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


def _refuse_settings_of_runs(asked: Asked) -> None:
    given = {"data": asked.data, "split": asked.split, "rows": asked.rows}
    named = [f"--{name}" for name, value in given.items() if value is not None]
    if named:
        raise ConfigError(
            f"{asked.path} is a comparison, which is reported from its results; leave out "
            f"{', '.join(named)}, or report one of its runs"
        )


def _options(asked: Asked) -> Options:
    if asked.map not in get_args(Projection):
        names = ", ".join(get_args(Projection))
        raise ConfigError(f"--map must be one of {names}, got {asked.map!r}")
    return Options(
        data=asked.data,
        split="test" if asked.split is None else asked.split,
        rows=100_000 if asked.rows is None else asked.rows,
        seed=asked.seed,
        projection="umap" if asked.map == "umap" else "pca",
    )
