"""One run of a comparison or a study: its files, and the commands that create them."""

from __future__ import annotations

import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys_moe.artifact.run_folder import RUN, checkpoint_files
from recsys_moe.files import check_out, read_record
from recsys_moe.inference.evaluation.ranking import LENGTH
from recsys_moe.lab.jobs.executor import Step

COMMAND = [sys.executable, "-m", "recsys_moe"]


@dataclass(frozen=True)
class LabRun:
    """A run folder of `fit` below a comparison or a study, and its log."""

    out: Path
    kind: str
    """The folder of all runs: `runs` of a comparison, `trials` of a study."""
    name: str

    @property
    def folder(self) -> Path:
        return self.out / self.kind / self.name

    @property
    def log(self) -> Path:
        return self.out / "logs" / f"{self.name}.log"

    @property
    def places(self) -> tuple[str, str]:
        """Folder and log, relative to the comparison or study."""
        folder, log = (path.relative_to(self.out).as_posix() for path in (self.folder, self.log))
        return folder, log

    @property
    def is_trained(self) -> bool:
        """True if `fit` has finished: it writes the model last."""
        return (self.folder / "model" / "manifest.json").is_file()

    def read_log(self) -> str:
        """The output of the commands so far; empty before the first."""
        if not self.log.is_file():
            return ""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def evaluation(self, split: str) -> dict[str, Any] | None:
        """The evaluation that `fit` or `evaluate` has written; None without one."""
        file = self._evaluation_file(split)
        if not (file.is_file() and self.is_trained):
            return None
        return read_record(file, "delete it and start again")

    def ranking(self, split: str) -> dict[str, Any] | None:
        """The ranking metrics of plain `evaluate --ranking`: top LENGTH by the first binary task;
        None without them."""
        result = self.evaluation(split) or {}
        found = result.get("ranking", {})
        first = next((task for task, kept in result.get("tasks", {}).items() if "auc" in kept), "")
        asked = found.get("k"), found.get("task"), found.get("at_least")
        return found if asked == (LENGTH, first, None) else None

    def _evaluation_file(self, split: str) -> Path:
        return self.folder / "evaluation" / f"{split}.json"

    def fit_step(self, data: Path, config: Path, *more: str, init_from: Path | None = None) -> Step:
        """`fit`, resumed if possible. `more`: further arguments; `init_from`: of a warm start."""
        paths = ["--data", str(data), "--config", str(config), "--out", str(self.folder)]

        def fit() -> list[str] | None:
            if self.is_trained:
                return None
            # A checkpoint that was cut off while it was written lacks the archive's directory.
            if any(map(zipfile.is_zipfile, checkpoint_files(self.folder))):
                return [*COMMAND, "fit", *paths, *more, "--resume", "auto"]
            if self.folder.exists():
                check_out(self.folder, RUN, True)
                shutil.rmtree(self.folder)
            start = [] if init_from is None else ["--init-from", str(init_from)]
            return [*COMMAND, "fit", *paths, *more, *start]

        return fit

    def evaluate_step(self, split: str, data: Path, *more: str) -> Step:
        """`evaluate` on a split. `more`: further arguments, such as `--ranking`."""

        def evaluate() -> list[str] | None:
            found = self.evaluation(split)
            if found and ("--ranking" not in more or self.ranking(split)):
                return None
            arguments = [str(self.folder), "--split", split, "--data", str(data), *more]
            return [*COMMAND, "evaluate", *arguments]

        return evaluate
