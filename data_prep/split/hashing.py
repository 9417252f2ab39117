"""Random numbers that are functions of what they are for, so that the order of work is free."""

from __future__ import annotations

import hashlib
from functools import reduce

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]


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
