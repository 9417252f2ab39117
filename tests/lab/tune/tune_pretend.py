"""Studies without training: an executor whose trainings are a formula, and what reads results."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.config.files import read_config_file
from recsys_moe.config.settings import parse_config
from recsys_moe.lab.jobs.executor import Job, Outcome
from recsys_moe.lab.tune.plan import StudyRequest
from recsys_moe.lab.tune.study import Study
from tests.conftest import TINY_MODEL

TRAINER = {"max_epochs": 2, "batch_size": 64}
TINY = parse_config({"model": TINY_MODEL, "trainer": TRAINER})
ASKED = StudyRequest(config=TINY, trials=3, sampler="random", weights="0.9,0.1")


def bowl(config: dict[str, Any], epoch: int) -> float:
    """A loss with its best learning rate at 2e-4, which falls with the epochs."""
    return float(abs(config["optim"]["lr"] / 2e-4 - 1) + 1 / epoch)


@dataclass
class Pretend:
    """An executor whose trainings are a formula; it leaves the files of fit and evaluate."""

    loss: Callable[[dict[str, Any], int], float] = bowl
    stops_at: str = "nothing"
    fails: str = "nothing"
    says: str = ""
    ran: list[str] = field(default_factory=list)

    def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
        for job in jobs:
            if job.name == self.stops_at:
                raise KeyboardInterrupt
            if job.name == self.fails:
                job.log.parent.mkdir(exist_ok=True)
                job.log.write_text(f"$ fit\n{self.says}\n")
                yield Outcome(job, 1, 1)
                continue
            yield Outcome(job, 0, sum(self._did(job, step()) for step in job.steps))

    def _did(self, job: Job, command: list[str] | None) -> bool:
        if command is None:
            return False
        self.ran.append(f"{command[3]} {job.name}")
        if command[3] == "fit":
            options = dict(zip(command[4::2], command[5::2], strict=True))
            self._fit(job, Path(options["--out"]), read_config_file(options["--config"]))
        else:
            result = json.loads((Path(command[4]) / "evaluation" / "val.json").read_text())
            result["loss"] += 1
            (Path(command[4]) / "evaluation" / "test.json").write_text(json.dumps(result))
        return True

    def _fit(self, job: Job, run: Path, config: dict[str, Any]) -> None:
        rows = ["epoch,train/loss,val/loss"]
        (run / "evaluation").mkdir(parents=True)
        for epoch in range(1, config["trainer"]["max_epochs"] + 1):
            rows.append(f"{epoch},1,{self.loss(config, epoch)}")
            (run / "metrics.csv").write_text("\n".join(rows))
            if job.ends_early():
                return
        result = {"loss": self.loss(config, epoch), "epoch": epoch}
        (run / "evaluation" / "val.json").write_text(json.dumps(result))
        (run / "model").mkdir()
        (run / "model" / "manifest.json").write_text("{}")


def longer(epochs: int, **changes: Any) -> StudyRequest:
    config = parse_config({"model": TINY_MODEL, "trainer": {"max_epochs": epochs}})
    return replace(ASKED, config=config, **changes)


def trials(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "trials.json").read_text())["trials"]  # type: ignore[no-any-return]


def drawn(out: Path) -> list[dict[str, Any]]:
    return [trial["params"] for trial in trials(out)]


def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies in memory, by URL, and no plots: what a test is not about takes no seconds."""
    import optuna

    kept: dict[str, Any] = {}
    opened = lambda self, url: kept.setdefault(url, optuna.storages.InMemoryStorage())  # noqa: E731
    monkeypatch.setattr(Study, "_open", opened)
    monkeypatch.setattr(Study, "close", lambda self: None)
    monkeypatch.setattr(Study, "plot", lambda self, file: None)
