"""Under overload, refusals that cost an eighth: before uvicorn (0.54) and h11 parse the request.

An ordinary refusal costs half of an answer. At three times the rate that the service can answer it
would do nothing but refuse, and those who wait in the sockets would wait for seconds. To go when a
refusal by the routes costs less, as with uvicorn's other parser, httptools, which needs none.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Collection
from typing import Any

import h11
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.h11_impl import H11Protocol

from recsys_moe.serve.http import JSON, LATER, TOO_MANY
from recsys_moe.serve.schemas import ErrorReply

BODY = ErrorReply(error=TOO_MANY).model_dump_json().encode()
FIELDS = {**LATER, "Content-Type": JSON, "Content-Length": str(len(BODY))}
HEAD = "".join(f"{name}: {value}\r\n" for name, value in FIELDS.items())
REFUSAL = f"HTTP/1.1 429 Too Many Requests\r\n{HEAD}\r\n".encode() + BODY
FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+:[ \t\x21-\x7e]*")
"""In lower case, of RFC 9112: no space before the colon, no folded line, no control character."""
ASIDE = {b"transfer-encoding", b"expect", b"upgrade", b"connection"}
"""Requests with these fields are left to the parser."""


class Gate:
    """How many requests are in work, those that came in this turn of the event loop included."""

    def __init__(self, most: int, waiting: Callable[[], int]) -> None:
        """`waiting`: how many wait for their answers."""
        self._most, self._waiting, self._begun = most, waiting, 0

    def is_full(self) -> bool:
        return self._waiting() + self._begun >= self._most

    def begin(self) -> None:
        """One more has come. The next turn runs all that came before it, so that they wait."""
        if self._begun == 0:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._begun += 1

    def _end_turn(self) -> None:
        self._begun = 0


class Shedding(H11Protocol):
    """uvicorn's, which refuses whole requests to `asking` while too many are in work."""

    def __init__(
        self,
        *args: Any,
        gate: Gate,
        refused: Callable[[str], None],
        asking: Collection[str],
        **options: Any,
    ) -> None:
        """`refused` is told the path of each refusal."""
        super().__init__(*args, **options)
        self.refusals = 0
        self._gate, self._refused = gate, refused
        self._lines = {f"post {path} http/1.1".encode(): path for path in asking}

    def data_received(self, data: bytes) -> None:
        if self._gate.is_full() and self._is_between_requests() and is_whole(data):
            path = self._lines.get(data.partition(b"\r\n")[0].lower())
            if path is not None:
                return self._refuse(path)
        self._gate.begin()
        super().data_received(data)

    def _refuse(self, path: str) -> None:
        self._unset_keepalive_if_required()
        self.refusals += 1
        self.transport.write(REFUSAL)
        self._refused(path)

    def _is_between_requests(self) -> bool:
        conn = self.conn
        idle = conn.our_state is h11.IDLE and conn.their_state is h11.IDLE
        # Who does not read is left to uvicorn, which then stops reading, too.
        taken = not self.transport.get_write_buffer_size()
        idle = idle and taken and conn.trailing_data == (b"", False)
        return idle and not self.transport.is_closing()


def is_whole(data: bytes) -> bool:
    """Is this one request, with a plain body of the length that it announces, and no more?

    Whatever two readers might frame in two ways is left to the parser.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")[1:]
    fields = [line.partition(b":") for line in lines if FIELD.fullmatch(line)]
    names = [name for name, _, _ in fields]
    lengths = [value.strip() for name, _, value in fields if name == b"content-length"]
    plain = bool(end) and len(fields) == len(lines) and ASIDE.isdisjoint(names)
    return plain and names.count(b"host") == 1 and lengths == [b"%d" % len(body)]


def protocol(**options: Any) -> Any:
    """What uvicorn's `http` takes; the options are those of `Shedding`."""
    if AutoHTTPProtocol is not H11Protocol:
        return "auto"
    return functools.partial(Shedding, **options)
