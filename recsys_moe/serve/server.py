"""Bind, load, serve, drain."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import math
import os
import signal
import socket
from collections.abc import Coroutine, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import uvicorn

from recsys_moe.errors import ConfigError, RunError
from recsys_moe.inference.events.journal import Journal
from recsys_moe.inference.events.store import EventStore
from recsys_moe.interrupts import unwinding
from recsys_moe.serve.app import build_app
from recsys_moe.serve.http import allowed_hosts, checked_names
from recsys_moe.serve.limits import Limits
from recsys_moe.serve.metrics import Metrics
from recsys_moe.serve.models import Models
from recsys_moe.serve.service import Service

logger = logging.getLogger("recsys_moe")
KEY_VARIABLE = "RECSYS_MOE_API_KEY"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How `serve` listens. Raises ConfigError for an invalid value."""

    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = field(default_factory=Limits)
    key: str | None = None
    watch: float = 2.0
    """Seconds between checks of the model folder; 0: only SIGHUP and /reload replace the model."""
    threads: int = 1
    """Threads of one tensor operation."""
    access_log: bool = False
    hosts: tuple[str, ...] = ()
    """Additional allowed values of `Host` (see `http.allowed_hosts`)."""
    events: Path | None = None
    """File of observed events, replayed at the start; None: they are lost at the end."""
    store: EventStore = field(default_factory=lambda: EventStore(1))
    """Of observed events; a model that reads longer timelines lengthens it."""
    retrieve: int | None = None
    """Items per user that /recommend scores, see `models.load`; None: all."""

    def __post_init__(self) -> None:
        checked_names(self.hosts)
        if self.watch < 0:
            raise ConfigError(f"--watch must be at least 0 seconds, got {self.watch:g}")
        if self.threads < 1:
            raise ConfigError(f"--threads must be at least 1, got {self.threads}")


def read_key(file: Path | None) -> str | None:
    """The API key from `file`, else from the environment, else none. Raises ConfigError."""
    key, origin = os.environ.get(KEY_VARIABLE), KEY_VARIABLE
    if file is not None:
        try:
            key, origin = file.read_text(encoding="utf-8"), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-key-file {file} cannot be read: {error}") from None
    if key is None:
        return None
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{origin} must hold the API key as one word of ASCII")
    return key


def serve(model: Path, settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is in flight.

    Raises RunError if the address cannot be used, DataError if the model cannot. A signal before
    the first request could be answered is the caller's.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    with _threads(settings.threads), _listener(settings.host, settings.port) as listener:
        metrics = Metrics()
        models = Models(model, metrics, _settle, settings.store, retrieve=settings.retrieve)
        journal = _journal(models, settings)
        hosts = allowed_hosts(listener.getsockname()[0], checked_names(settings.hosts))
        service = Service(models, metrics, settings.limits, key=settings.key, hosts=hosts)
        config = uvicorn.Config(
            build_app(service),
            log_config=None,
            access_log=settings.access_log,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=math.ceil(settings.limits.drain),
            timeout_keep_alive=math.ceil(settings.limits.timeout),
            lifespan="off",
            ws="none",
        )
        with unwinding(), closing(journal) if journal else nullcontext():
            Server(config, service, settings).run(sockets=[listener])
        logger.info("stopped")


def _journal(models: Models, settings: Settings) -> Journal | None:
    """The file of events, replayed. Raises ConfigError and DataError."""
    if settings.events is None:
        return None
    if models.current.predictor.store is None:
        raise ConfigError(
            f"--events needs a model that reads events, got {models.path} with "
            "model.sequence=none; omit --events, or train with model.sequence=lru"
        )
    journal, store = Journal(settings.events), settings.store
    try:
        store.replay(journal.replay(store.check))
    except BaseException:
        journal.close()
        raise
    store.sink = journal
    logger.info("%s: events of %d user%s", settings.events, len(store), "s"[len(store) == 1 :])
    return journal


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Set torch's number of threads, and restore it at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Server(uvicorn.Server):
    """uvicorn's server, which also watches the model folder and marks the service as draining."""

    def __init__(self, config: uvicorn.Config, service: Service, settings: Settings) -> None:
        super().__init__(config)
        self._service = service
        self._settings = settings
        self._background: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        models, seconds = self._service.models, self._settings.watch
        if seconds:
            self._start(models.watch(seconds))
        if hasattr(signal, "SIGHUP"):
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: self._start(models.follow()))
        for listener in sockets or []:
            _announce(listener, self._settings, models.current.version)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._background:
            task.cancel()
        await super().shutdown(sockets)
        self._service.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain. uvicorn's would raise the signal again at the end; to be stopped is no failure."""
        self._service.draining = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _settle() -> None:
    """Exempt all present objects from garbage collection.

    A full collection walks every object of torch and the model, which blocks requests for 0.3 s.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _listener(host: str, port: int) -> socket.socket:
    """A bound socket; before the model is loaded, to report a used port early. Raises RunError."""
    try:
        kind = socket.SOCK_STREAM
        family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
        # With the protocol named, asyncio turns Nagle's algorithm off; without, answers take 40 ms.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "choose another --port or --host"
        raise RunError(f"cannot listen on {host}:{port}: {reason}; {remedy}") from None
    return listener


def _announce(listener: socket.socket, settings: Settings, version: str) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    logger.info("serving model %s on http://%s:%d", version, shown, port)
    if settings.key is None and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        logger.warning("%s accepts requests without an API key; set %s", host, KEY_VARIABLE)
