"""One seed drives named random streams that do not disturb each other."""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream called `names`, e.g. `stream_seed(0, "shuffle", epoch)`.

    A hash and not `seed + n`: neighbouring seeds must not share any stream.
    """
    text = "/".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
