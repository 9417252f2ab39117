"""Joins a Ray cluster, or starts a private one that only this user on this machine can reach."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from recsys_moe.errors import ConfigError, RunError
from recsys_moe.machine import cores

logger = logging.getLogger("recsys_moe.ray_cluster")
LOCAL, AUTO = "local", "auto"
ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})")
SECONDS_TO_CONNECT = 10.0
KEY, RAYS = Path("key", "token"), "r"
"""Below the private folder."""
OBJECT_STORE = 80 * 2**20
"""Bytes; tasks exchange a command and an exit code. Ray accepts no less than 75 MiB."""
LONGEST_FOLDER = 21
"""Bytes of the folder for temporary files. The path of a socket may have 103 (macOS; Linux: 107),
of which ours takes 18 (`/rm-ray-` + 8 + `/r`), Ray's session 43 (`/session_` + a date of 26 +
`_` + a pid of 7) and its longest name 21 (`/sockets/plasma_store`)."""


def check_address(address: str) -> None:
    """Raise ConfigError unless it is `local`, `auto` or HOST:PORT."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"--address {address}: a Ray client sees no results on disk; start this on a node of "
            "the cluster, with --address auto"
        )
    parts = ADDRESS.fullmatch(address)
    if address not in (LOCAL, AUTO) and not (parts and 0 < int(parts["port"]) < 2**16):
        raise ConfigError(f"--address must be local, auto or HOST:PORT, got {address!r}")


def load_ray(address: str) -> Any:
    """The module `ray`, ready for `address`. Raises ConfigError where it is not installed."""
    _prepare(address)
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError(
            "--engine ray needs ray, which is not installed: pip install 'recsys-moe[ray]'"
        ) from None


@contextmanager
def connected(ray: Any, address: str) -> Iterator[None]:
    """Join the cluster for the block, or start a private one; one that is joined stays joined."""
    if ray.is_initialized():
        yield
        return
    logger.info("connecting to ray (%s) ...", address)
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    try:
        with _own_signals():
            if address == LOCAL:
                ray.init("local", **_arguments(), **quiet)
            else:
                _answers(address)
                ray.init(address, **quiet)
        yield
    except (ConnectionError, ray.exceptions.RaySystemError, ray.exceptions.RpcError) as error:
        raise RunError(f"--address {address}: {first_line(error)}; is the cluster up?") from None
    finally:
        ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what this process does on signals; Ray would put a handler of its own there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _answers(address: str) -> None:
    """Raise RunError at once where nobody listens; Ray would try for a minute."""
    if parts := ADDRESS.fullmatch(address):
        try:
            place = parts["host"].strip("[]"), int(parts["port"])
            socket.create_connection(place, SECONDS_TO_CONNECT).close()
        except OSError as error:
            raise RunError(
                f"--address {address}: {error.strerror or error}; "
                "start the cluster with `ray start --head`"
            ) from None


def _prepare(address: str) -> None:
    """Set what Ray reads when it is imported; call this before. Only `local` needs more than 1."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address != "local" or "ray" in sys.modules:
        return
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # listen on loopback alone
    os.environ["RAY_AUTH_MODE"] = "token"  # other users of this machine can reach loopback
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(_folder() / KEY)


def _arguments() -> dict[str, Any]:
    """Arguments of `ray.init` for a small instance."""
    return {
        "num_cpus": cores(),
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE,
        "_temp_dir": str(_folder() / RAYS),
    }


@cache
def _folder() -> Path:
    """A folder of this process that no other user can enter, removed at the end.

    The key and Ray's files are apart in it, since Ray opens its own folder to everybody.
    """
    common = Path(tempfile.gettempdir())
    short = Path("/tmp")  # noqa: S108 - mkdtemp below makes a folder that nobody else can enter
    if len(os.fsencode(common)) > LONGEST_FOLDER and short.is_dir():
        common = short
    own = Path(tempfile.mkdtemp(prefix="rm-ray-", dir=common))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    for name in (KEY.parent, RAYS):
        (own / name).mkdir(mode=0o700)
    with os.fdopen(os.open(own / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as key:
        key.write(secrets.token_hex(32))
    return own


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
