"""`recsys-moe report`: a run or a comparison in, a folder with a page out."""

from __future__ import annotations

from pathlib import Path

from recsys_moe.artifact.model_folder import MANIFEST
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.lab.report.comparison import RESULTS
from recsys_moe.lab.report.comparison_report import comparison_report
from recsys_moe.lab.report.page import Report
from recsys_moe.lab.report.run import Options, Progress
from recsys_moe.lab.report.run_report import run_report
from recsys_moe.lab.report.write import check_out, write_report


def build_report(
    path: Path, out: Path, options: Options, *, overwrite: bool, progress: Progress
) -> Report:
    """Write the report on `path` to `out`, completely or not at all.

    Raises ConfigError for a setting or a folder in the way, DataError for what cannot be read.
    """
    check_out(out, overwrite)
    if _is_comparison(path):
        given = {"data": options.data, "split": options.split, "rows": options.rows}
        named = [f"--{name}" for name, value in given.items() if value is not None]
        if named:
            raise ConfigError(
                f"{path} is a comparison, which is reported from its results; leave out "
                f"{', '.join(named)}, or report one of its runs"
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
