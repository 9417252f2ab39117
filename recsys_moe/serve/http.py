"""What all routes share: the API key, one shape of errors, counting, names in `Host`.

The `Host` check stops DNS rebinding: a web page that gives its own name the address 127.0.0.1 could
read answers of a service on the visitor's machine, but the browser still sends the page's name.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from fastapi import Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recsys_moe.errors import ConfigError
from recsys_moe.serve.metrics import Metrics
from recsys_moe.serve.replies import ErrorReply

logger = logging.getLogger("recsys_moe")
Endpoint = Callable[[Request], Awaitable[Response]]
JSON = "application/json"
MISDIRECTED = "Host header not allowed; add the name with --allow-host"
TOO_MANY = "too many requests are waiting; try again in a second"
LATER = {"Retry-After": "1"}
ANY = "*"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
NAME = re.compile(r"\*|[a-z0-9]([a-z0-9._-]*[a-z0-9])?|[0-9a-f]*(:[0-9a-f.]*){2,}", re.ASCII)
"""`*`, a name, or an address; no port."""


def reply(body: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body.model_dump_json(), status, headers, JSON)


def refuse(status: int, message: str, headers: dict[str, str] | None = None) -> HTTPException:
    return HTTPException(status, message, headers)


async def on_http_error(request: Request, error: Exception) -> Response:
    """404, 405 and all that `refuse` raises, as {"error": ...}."""
    assert isinstance(error, HTTPException)
    return reply(ErrorReply(error=error.detail), error.status_code, dict(error.headers or {}))


def check_key(request: Request, key: str | None) -> None:
    """Raise 401 unless the request carries the key. Compared in constant time."""
    if key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(given.strip().encode(), key.encode())
    if not (same and scheme.lower() == "bearer"):
        message = "send the API key as `Authorization: Bearer KEY`"
        raise refuse(401, message, {"WWW-Authenticate": "Bearer"})


class Metered:
    """ASGI middleware: counts and times every answer; turns a crash into a 500 in our shape.

    Requests whose `Host` is not one of `hosts` are refused. `paths`: the routes that counters may
    name; all others count as `other`, which bounds the labels. While the service is
    `full`, requests to the paths in `asking` are refused here, before anything
    is read: refusals under overload must be cheap.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        paths: frozenset[str],
        hosts: frozenset[bytes] | None,
        *,
        asking: frozenset[str],
        full: Callable[[], bool],
    ) -> None:
        self.app, self.metrics, self.paths, self.hosts = app, metrics, paths, hosts
        self.asking, self.full = asking, full

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope)(scope, receive, noting)
        except asyncio.CancelledError:  # the time to drain is up
            if status:
                raise
            logger.warning("%s %s was cut off: shutting down", scope["method"], scope["path"])
            await reply(ErrorReply(error="shutting down"), 503)(scope, receive, noting)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if status:
                raise
            await reply(ErrorReply(error="internal error"), 500)(scope, receive, noting)
        finally:
            route = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.answered(route, status, time.perf_counter() - start)

    def _answer(self, scope: Scope) -> ASGIApp:
        """The application that answers: the routes, or a refusal."""
        if not (self.hosts is None or host_of(scope["headers"]) in (None, *self.hosts)):
            return reply(ErrorReply(error=MISDIRECTED), 421)
        if scope["path"] in self.asking and self.full():
            return reply(ErrorReply(error=TOO_MANY), 429, LATER)
        return self.app


def checked_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names in lower case. Raises ConfigError for one that has a port or is not a host name."""
    lower = tuple(name.lower().strip("[]") for name in names)
    for name in lower:
        if not NAME.fullmatch(name):
            rule = "--allow-host must be a name or an address without a port, or *"
            raise ConfigError(f"{rule}, got {name!r}")
    return lower


def allowed_hosts(bound: str, names: Sequence[str]) -> frozenset[bytes] | None:
    """Allowed values of `Host`, without the port; None for any.

    `bound`: the address of the listening socket. On a loopback address the check is always on,
    elsewhere only with `names`.
    """
    bound = bound.partition("%")[0]
    if ANY in names or not (names or ipaddress.ip_address(bound).is_loopback):
        return None
    return frozenset(name.encode() for name in (*LOOPBACK, bound, *names))


def host_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Lower-case name or address in the `Host` of an ASGI scope.

    None without the header: browsers always send it, simple health checks may not.
    """
    host = next((value.lower() for name, value in headers if name == b"host"), None)
    if host is None:
        return None
    if host.startswith(b"["):
        return host[1:].partition(b"]")[0]
    return host.partition(b":")[0].removesuffix(b".")
