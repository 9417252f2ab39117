"""Connections that hold the service up are dropped; uvicorn (0.54) alone waits for them for ever.

It has a time-out between two requests only: a head that comes byte by byte, a body that goes on
after its refusal, and an answer that nobody reads would keep their connection, and the answer its
memory, as long as the client likes. To go when uvicorn has time-outs for these.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

LOOKS = 10
"""Looks at all connections within the patience: so much, in tenths, it may be exceeded."""


class Held(NamedTuple):
    """What a connection has been at since then (s, monotonic)."""

    cycle: Any
    refusals: int
    since: float


class Patience:
    """Drops connections on which the same request, or none, has been stuck for `seconds`.

    Stuck is what only the client can move: no head has come since the last answer, or an answer is
    not taken. Bodies that do not come have their own limit (`http.read`), and answers that the
    model has not given yet (`Batcher.submit`).
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._held: dict[Any, Held] = {}

    async def watch(self, connections: Iterable[Any]) -> None:
        """For ever. `connections`: uvicorn's protocols, a set that changes."""
        while True:
            await asyncio.sleep(min(1.0, self._seconds / LOOKS))
            self.look(connections, time.monotonic())

    def look(self, connections: Iterable[Any], now: float) -> None:
        stuck = [connection for connection in connections if _is_stuck(connection)]
        before, self._held = self._held, {}
        for connection in stuck:
            held, refusals = before.get(connection), getattr(connection, "refusals", 0)
            if not (held and held.cycle is connection.cycle and held.refusals == refusals):
                held = Held(connection.cycle, refusals, now)
            self._held[connection] = held
            if now - held.since >= self._seconds:
                connection.transport.abort()


def _is_stuck(connection: Any) -> bool:
    """Is it the client's turn, to send a head or to take an answer?"""
    cycle = connection.cycle
    if cycle is None or cycle.response_complete:
        return True
    return bool(connection.transport.get_write_buffer_size())


def allow_connections() -> None:
    """Raise the limit of open files, a usual 1,024, as far as this process may."""
    if resource is not None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(ValueError, OSError):  # systems that name no limit that they keep
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
