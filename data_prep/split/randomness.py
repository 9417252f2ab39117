"""Random numbers, each a function of the seed and of what it is for.

stream() is for work in one order, mix() of hashes for work whose order is free.
"""

from __future__ import annotations

import hashlib
from functools import reduce

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.options import at_least

Hashes = NDArray[np.uint64]


def stream(seed: int, name: str) -> np.random.Generator:
    """The generator of (seed, name): a new decision never moves the draws of an old one."""
    at_least("--seed", seed, 0)
    return np.random.default_rng(np.random.SeedSequence([seed, *name.encode("ascii")]))


def of_ids(ids: pa.Array) -> Hashes:
    """A hash of every id's spelling, the same for the text "7" and the number 7."""
    text = ids.cast(pa.string()).to_numpy(zero_copy_only=False)
    return np.asarray(pd.util.hash_array(text.astype(object), categorize=False))


def key(seed: int, name: str) -> Hashes:
    """Where a stream of (seed, name) starts, as an array of one."""
    digest = hashlib.sha256(f"{seed}/{name}".encode("ascii")).digest()
    return np.frombuffer(digest[:8], dtype="<u8").astype(np.uint64)


def mix(*parts: Hashes) -> Hashes:
    """One well mixed number from several, elementwise.

    The finaliser of SplitMix64 (Steele et al. 2014) after each part.
    """
    return reduce(lambda state, part: _finalise(state ^ part), parts)


def _finalise(z: Hashes) -> Hashes:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
