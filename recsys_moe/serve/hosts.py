"""Which names a request may call this service by.

A web page may give its own name the address 127.0.0.1 (DNS rebinding). The browser then lets it
read what a service on the visitor's machine answers, but still says the page's name in `Host`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from recsys_moe.errors import ConfigError

ANY = "*"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.ASCII)


def checked_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names in lower case. Raises ConfigError for what is no name or address, or has a port."""
    found = tuple(name.lower().strip("[]") for name in names)
    for name in found:
        if not (name == ANY or NAME.fullmatch(name) or _is_address(name)):
            rule = "--allow-host must be a name or an address without a port, or *"
            raise ConfigError(f"{rule}, got {name!r}")
    return found


def allowed_hosts(bound: str, names: Sequence[str]) -> frozenset[bytes] | None:
    """What `Host` may say, without the port; None for anything.

    `bound`: the address of the listening socket. Unless it is one of this machine alone, only
    `names` make a list.
    """
    bound = bound.partition("%")[0]
    if ANY in names or not (names or ipaddress.ip_address(bound).is_loopback):
        return None
    return frozenset(name.encode() for name in (*LOOPBACK, bound, *names))


def host_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Lower-case name or address in the `Host` of an ASGI scope.

    None where there is none: a browser always sends it, simple health checks may not.
    """
    host = next((value.lower() for name, value in headers if name == b"host"), None)
    if host is None:
        return None
    if host.startswith(b"["):
        return host[1:].partition(b"]")[0]
    return host.partition(b":")[0].removesuffix(b".")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
