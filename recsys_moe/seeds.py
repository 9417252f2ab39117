"""Independent random streams from one seed."""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream called `names`, e.g. `stream_seed(0, "shuffle", epoch)`.

    A hash: with `seed + n` neighbouring seeds would share streams. torch's CPU generator reads the
    lower 32 bits only, so of N streams about N^2 / 2^33 pairs are equal (tests/test_streams.py).
    Those belong to unrelated steps.
    """
    text = "/".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
