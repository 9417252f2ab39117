"""Independent random streams, each named for the decision it makes."""

from __future__ import annotations

import numpy as np

from data_prep.options import at_least


def stream(seed: int, name: str) -> np.random.Generator:
    """The generator of (seed, name): a new decision never moves the draws of an old one."""
    at_least("--seed", seed, 0)
    return np.random.default_rng(np.random.SeedSequence([seed, *name.encode("ascii")]))
