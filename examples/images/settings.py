"""Settings of a run: the paper's protocol for each data set (its supplement, S6), and changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.common.runs import check_settings
from examples.images.data import Splits, multi_fashion, multi_mnist, svhn
from recsys_moe.errors import ConfigError


@dataclass(frozen=True)
class Protocol:
    """What the paper fixes for a data set."""

    load: Callable[[Path, int], Splits]
    tasks: int
    experts: int
    k: int
    epochs: int
    patience: int
    lr: float
    """The paper's for svhn; for the others a value of the range that it searched, 1e-4 to 1e-3."""


PROTOCOLS = {
    "multi_mnist": Protocol(multi_mnist, 2, 8, 4, 200, 25, 5e-4),
    "multi_fashion": Protocol(multi_fashion, 2, 5, 2, 200, 25, 5e-4),
    "svhn": Protocol(svhn, 1, 8, 2, 250, 50, 1e-4),
}

LEAST = {
    **dict.fromkeys(("tasks", "experts", "epochs", "patience", "batch_size"), 1),
    **dict.fromkeys(("trimmed_lasso", "seed"), 0),
}
PRECISIONS = ("32-true", "bf16-mixed")
"""Of arithmetic, in Lightning's words; see `Settings.precision`."""
PAPER = {"moesart": {"temperature": 1.0}}
"""Settings of routers in the paper, where the library's defaults are others."""


@dataclass(frozen=True)
class Settings:
    """Of one run. Plain values: they are written to its folder as JSON."""

    dataset: str
    tasks: int
    """1 or 2; 1: predict only the image at the top left."""
    router: str
    k: int
    """Experts per row, for routers that have such a number."""
    experts: int
    epochs: int
    """At most so many..."""
    patience: int
    """... and no more than so many without a better validation loss."""
    lr: float
    batch_size: int = 512
    precision: str = "32-true"
    """Or bf16-mixed: matrix products and convolutions in bfloat16, weights in float32."""
    trimmed_lasso: float = 0.0
    """Weight of the penalty on the probabilities off the k largest; the paper tries 0 to 10."""
    seed: int = 0
    """Of initial weights, batches and draws; the composites are the same for all."""
    router_settings: dict[str, Any] = field(default_factory=dict)

    def check(self) -> Settings:
        """Itself. Raises ConfigError for a number out of its range."""
        check_settings(self, LEAST)
        most = PROTOCOLS[self.dataset].tasks
        if self.tasks > most:
            raise ConfigError(f"--tasks must be at most {most} on {self.dataset}, got {self.tasks}")
        return self


def settings_for(dataset: str, router: str, **changes: Any) -> Settings:
    """The protocol of a data set with what is given and not None over it. Raises ConfigError."""
    if dataset not in PROTOCOLS:
        raise ConfigError(f"--dataset must be one of {', '.join(PROTOCOLS)}, got {dataset}")
    protocol = {f.name: getattr(PROTOCOLS[dataset], f.name) for f in dataclasses.fields(Protocol)}
    del protocol["load"]
    given = {name: value for name, value in changes.items() if value is not None}
    own = {**PAPER.get(router, {}), **given.pop("router_settings", {})}
    named = {"dataset": dataset, "router": router, "router_settings": own}
    return Settings(**{**protocol, **given, **named}).check()
