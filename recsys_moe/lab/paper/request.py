"""What `recsys-moe paper` is asked, and what of it a study has no use for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recsys_moe.errors import ConfigError
from recsys_moe.lab.paper.recipes import Recipe


@dataclass(frozen=True, kw_only=True)
class PaperRequest:
    """A recipe and what stands over it; None is the recipe's own."""

    name: str
    """Of the recipe."""
    recipe: Recipe
    data: Path | None
    out: Path | None
    seeds: int | None = None
    """Runs per router and task weights, >= 1."""
    seed: int = 0
    """The first seed; the others follow."""
    settings: Path | None = None
    """YAML: sections per router."""
    trials: int | None = None
    """Per router, >= 1."""
    typed: dict[str, Any] = field(default_factory=dict)
    """Sections of the configuration from the command line, without the seed."""
    jobs: int | None = None
    """Runs at a time."""

    def check(self) -> Path:
        """The folder to write. Raises ConfigError for what is missing or has no use."""
        self._refuse_idle_options()
        if self.out is None:
            raise ConfigError(f"--out is needed: the folder for the runs of {self.name}")
        if self.recipe.routers and self.data is None:
            raise ConfigError(
                f"--data is needed for {self.recipe.makes}; make it with: {self.recipe.prepare}"
            )
        return self.out

    def _refuse_idle_options(self) -> None:
        of_compare = {"--seeds": self.seeds, "--settings": self.settings}
        of_tune = {"--trials": self.trials}
        idle = {"tuning": of_compare, "bias": {**of_compare, **of_tune}}
        for option, value in idle.get(self.recipe.figure or "", of_tune).items():
            if value is not None:
                raise ConfigError(
                    f"{option} has no meaning for this study, got {value}; leave it out"
                )
