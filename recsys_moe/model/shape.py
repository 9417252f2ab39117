"""The sizes of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """The sizes a model is built for; ids beyond them are out of vocabulary (OOV)."""

    num_users: int
    num_items: int
    num_tasks: int
    outputs: tuple[int, ...] = ()
    """Logits of each task; empty: one each."""
    is_open: bool = False
    """Whether indices beyond those of the sizes are OOV ids with features and bags of their own."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Logits of each task."""
        return self.outputs or (1,) * self.num_tasks

    @property
    def num_logits(self) -> int:
        """Columns of `Output.logits_BT`: one per task, and of a task with classes one per class."""
        return sum(self.sizes)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Task and output of each column of the logits."""
        return [(task, output) for task, size in enumerate(self.sizes) for output in range(size)]
