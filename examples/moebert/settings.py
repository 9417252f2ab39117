"""Settings of a run: the tasks, the defaults of each, and changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.common.runs import check_settings
from examples.moebert import glue, squad, titles
from examples.moebert.rows import Splits
from examples.moebert.words import Words
from recsys_moe.errors import ConfigError


@dataclass(frozen=True)
class Task:
    """Where its texts come from, and how long and fast it is trained if no option says."""

    load: Callable[[Path, Words | None], tuple[Splits, Words]]
    classes: int
    """0: the task asks for the two ends of an answer."""
    epochs: int
    lr: float
    batch_size: int
    length: int
    """Tokens of a text at most."""


def _glue(name: str, classes: int) -> Task:
    return Task(glue.loader(name), classes, 10, 5e-5, 64, glue.LENGTH)


TASKS = {
    "titles": Task(titles.load, len(titles.GENRES), 2, 2e-4, 32, titles.LENGTH),
    **{name: _glue(name, len(columns.labels)) for name, columns in glue.COLUMNS.items()},
    "squad": Task(squad.load, 0, 10, 5e-5, 32, squad.LENGTH),
}
PAPER = {"moesart": {"temperature": 1.0}}
"""Settings of routers in the paper, where the library's defaults are others."""


@dataclass(frozen=True)
class Training:
    """What a teacher's run and a student's share. Plain values: they are written as JSON."""

    task: str
    epochs: int
    """At most so many; the one of the least loss on the dev set is kept."""
    patience: int
    lr: float
    batch_size: int
    weight_decay: float = 0.0
    seed: int = 0
    """Of fresh weights, batches, dropout and draws; the texts are the same for all."""

    def check(self) -> Any:
        """Itself. Raises ConfigError for a number out of its range."""
        check_settings(self, LEAST)
        return self


@dataclass(frozen=True)
class Teacher(Training):
    """A run from scratch, or from a checkpoint."""

    start: str = ""
    """Folder of the checkpoint, empty for scratch..."""
    start_sha256: str = ""
    """... and what its weights were."""
    width: int = 128
    """From scratch: hidden size."""
    layers: int = 4
    """From scratch."""


@dataclass(frozen=True)
class Student(Training):
    """A run of distillation."""

    teacher: str = ""
    """Folder of the checkpoint..."""
    teacher_sha256: str = ""
    """... and what its weights were."""
    router: str = "moesart"
    k: int = 2
    """Experts per token, for routers that have such a number."""
    experts: int = 4
    units: int | None = None
    """Of an expert; None: a block's divided by the experts, 768 in BERT-base."""
    share: int | None = None
    """Of them in every expert; None: a sixth of the block's, 512 in BERT-base."""
    distill: float = 5.0
    """Weight of the distance to the teacher; the paper tries 1 to 5, MoEBERT has 5 on MNLI."""
    balance: float = 0.0
    """Weight of the load balance n sum f P, summed over layers."""
    trimmed_lasso: float = 0.0
    """Weight of the probabilities off the k largest; the paper tries 1e-4 to 10."""
    router_settings: dict[str, Any] = field(default_factory=dict)


LEAST = {
    **dict.fromkeys(("epochs", "patience", "batch_size", "experts", "k", "units"), 1),
    **dict.fromkeys(("width", "layers"), 1),
    **dict.fromkeys(("weight_decay", "seed", "distill", "balance", "trimmed_lasso"), 0),
    "share": 0,
}


def teacher(task: str, **changes: Any) -> Teacher:
    """The defaults of its task with what is given over them. Raises ConfigError."""
    return _made(Teacher, task, changes)


def student(task: str, **changes: Any) -> Student:
    """The defaults of the task, over them what is given and not None. Raises ConfigError."""
    name = changes.get("router", "moesart")
    changes["router_settings"] = {**PAPER.get(name, {}), **changes.get("router_settings", {})}
    return _made(Student, task, changes)


def _made(kind: Any, task: str, changes: dict[str, Any]) -> Any:
    if task not in TASKS:
        raise ConfigError(f"--task must be one of {', '.join(TASKS)}, got {task}")
    own = {name: getattr(TASKS[task], name) for name in ("epochs", "lr", "batch_size")}
    given = {name: value for name, value in changes.items() if value is not None}
    made = kind(**{"task": task, **own, "patience": given.get("epochs", own["epochs"]), **given})
    return made.check()
