"""Connects to a Ray cluster."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from recsys_moe.errors import ConfigError, RunError

logger = logging.getLogger("recsys_moe.ray_cluster")
AUTO = "auto"
ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})")
SECONDS_TO_CONNECT = 10.0


def check_address(address: str) -> None:
    """Raise ConfigError unless it is `auto` or HOST:PORT."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"--address {address}: a Ray client cannot read the results; run this on a node of "
            "the cluster, with --address auto"
        )
    parts = ADDRESS.fullmatch(address)
    if address != AUTO and not (parts and 0 < int(parts["port"]) < 2**16):
        raise ConfigError(
            f"--address must be auto or HOST:PORT, got {address!r}; "
            "on one machine leave --engine out"
        )


def load_ray() -> Any:
    """The module `ray`. Raises ConfigError if it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # it is read on import
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError("--engine ray needs ray: pip install 'recsys-moe[ray]'") from None


@contextmanager
def connected(ray: Any, address: str) -> Iterator[None]:
    """Connect for the block; an existing connection is kept."""
    if ray.is_initialized():
        yield
        return
    logger.info("connecting to ray (%s) ...", address)
    try:
        with _own_signals():
            _answers(address)
            ray.init(address, log_to_driver=False, configure_logging=False)
        yield
    except (ConnectionError, ray.exceptions.RaySystemError, ray.exceptions.RpcError) as error:
        raise RunError(f"--address {address}: {first_line(error)}; is the cluster up?") from None
    finally:
        ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our signal handlers; Ray would replace them."""
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
    """Raise RunError at once if the port is closed; Ray would retry for a minute."""
    if parts := ADDRESS.fullmatch(address):
        try:
            place = parts["host"].strip("[]"), int(parts["port"])
            socket.create_connection(place, SECONDS_TO_CONNECT).close()
        except OSError as error:
            raise RunError(
                f"--address {address}: {error.strerror or error}; "
                "start the cluster with `ray start --head`"
            ) from None


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
