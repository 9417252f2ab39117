"""What is packed may unpack to a hundred times its size: a thousand is a trap, or one letter."""

from __future__ import annotations

import gzip
import io
from typing import IO

from recsys_moe.schema import DataError

FREE = 1 << 28
"""Bytes that any file may unpack to, whatever its own size."""
MOST = 100
"""Times its own size that a file may unpack to. MovieLens' zips: about 5; deflate's bound: 1032."""
_PIECE = 1 << 20


def unpacked(stream: IO[bytes] | gzip.GzipFile, packed: int, label: str) -> bytes:
    """All of `stream`, which unpacks a file of `packed` bytes; what it announces is not believed.

    Raises DataError as soon as it is more than that file may unpack to.
    """
    most, found = max(FREE, MOST * packed), io.BytesIO()
    while piece := stream.read(_PIECE):
        found.write(piece)
        if found.tell() > most:
            raise DataError(
                f"{label}: must unpack to at most {most} bytes, {MOST} times its size or "
                f"{FREE >> 20} MiB; unpack it yourself if you trust it"
            )
    return found.getvalue()
