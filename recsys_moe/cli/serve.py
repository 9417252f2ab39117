"""`recsys-moe serve`."""

from __future__ import annotations

import logging
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from recsys_moe.cli.options import Model, Retrieve, opt
from recsys_moe.errors import ConfigError

logger = logging.getLogger("recsys_moe.serve")
EXTRA = ("fastapi", "uvicorn", "prometheus_client")


def _limit(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Limits")


AllowHost = Annotated[
    list[str] | None,
    opt(
        "Allowed value of the Host header; * allows any. Repeatable. By default any, but only "
        "localhost on a loopback address."
    ),
]
KeyFile = Annotated[
    Path | None, opt("File with the API key that requests must send (or RECSYS_MOE_API_KEY).")
]
EventsFile = Annotated[
    Path | None,
    opt("File that POST /events appends to, read again at the next start (JSON Lines)."),
]
Watch = Annotated[float, opt("Seconds between checks for a new model; 0 disables reloading.")]
Rows = Annotated[int, _limit("Pairs per /predict request, candidates per /recommend request.")]
UsersWaiting = Annotated[
    int, _limit("Queued users and pairs to explain; more are answered with 429.")
]
Timeout = Annotated[
    float, _limit("Seconds until a request fails with 504; also keep-alive of a connection.")
]


def serve(
    model: Model,
    host: Annotated[str, opt("Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, opt("Port; 0 picks a free one.", min=0, max=65535)] = 8000,
    allow_host: AllowHost = None,
    api_key_file: KeyFile = None,
    watch: Watch = 2.0,
    threads: Annotated[int, opt("CPU threads per tensor operation.", min=1, max=1024)] = 1,
    retrieve: Retrieve = None,
    events: EventsFile = None,
    event_tolerance: Annotated[
        float, opt("Seconds that an event may be older than the user's last one.")
    ] = 3600.0,
    access_log: Annotated[bool, opt("Log every request.", "--access-log")] = False,
    max_body: Annotated[int, _limit("Bytes per request body.")] = 1 << 20,
    max_rows: Rows = 10_000,
    max_explain: Annotated[int, _limit("Pairs per /explain request.")] = 100,
    max_users: Annotated[int, _limit("Users per /recommend request.")] = 16,
    max_k: Annotated[int, _limit("Items per user.")] = 1000,
    max_queue: Annotated[
        int, _limit("Queued pairs of /predict; more are answered with 429.")
    ] = 50_000,
    max_event_users: Annotated[
        int, _limit("Users with events in memory; who was quiet longest is evicted.")
    ] = 100_000,
    max_queue_users: UsersWaiting = 512,
    max_requests: Annotated[int, _limit("Queued requests; more are answered with 429.")] = 256,
    timeout: Timeout = 10.0,
    drain: Annotated[float, _limit("Seconds to finish requests after SIGTERM.")] = 30.0,
) -> None:
    """Serve a model over HTTP.

    Answers /predict, /recommend and /explain, and shows a web page at /. SIGTERM stops it.
    """
    options = locals()
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        remedy = 'install it with: pip install "recsys-moe[serve]"'
        raise ConfigError(f"serve requires {', '.join(missing)}; {remedy}")
    logger.info("loading torch and the model ...")
    from recsys_moe.inference.events.store import EventStore
    from recsys_moe.serve.limits import Limits
    from recsys_moe.serve.server import Settings, read_key
    from recsys_moe.serve.server import serve as run

    limits = Limits(**{field.name: options[field.name] for field in fields(Limits)})
    settings = Settings(
        host=host,
        port=port,
        limits=limits,
        key=read_key(api_key_file),
        watch=watch,
        threads=threads,
        access_log=access_log,
        hosts=tuple(allow_host or ()),
        retrieve=retrieve,
        events=events,
        store=EventStore(1, max_users=max_event_users, tolerance=event_tolerance),
    )
    run(model, settings)
