"""`recsys-moe serve`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from recsys_moe.cli.inference import Model
from recsys_moe.errors import ConfigError

LIMITS = "Limits"
EXTRA = ("fastapi", "uvicorn", "prometheus_client")


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to bind; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another name that requests may have in Host; * for any. On a loopback address "
            "only localhost and the address are allowed, elsewhere any name."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with the key that requests must carry (or RECSYS_MOE_API_KEY)."),
    ] = None,
    watch: Annotated[
        float, typer.Option(help="Seconds between looks at the model folder; 0 for never.")
    ] = 2.0,
    threads: Annotated[int, typer.Option(help="Threads of one tensor operation.")] = 1,
    access_log: Annotated[bool, typer.Option("--access-log", help="A line per request.")] = False,
    max_body: Annotated[int, typer.Option(help="Bytes of a body.", rich_help_panel=LIMITS)] = 1
    << 20,
    max_rows: Annotated[
        int,
        typer.Option(
            help="Pairs of one /predict, candidates of one /recommend.", rich_help_panel=LIMITS
        ),
    ] = 10_000,
    max_explain: Annotated[
        int, typer.Option(help="Pairs of one /explain.", rich_help_panel=LIMITS)
    ] = 100,
    max_users: Annotated[
        int, typer.Option(help="Users of one /recommend.", rich_help_panel=LIMITS)
    ] = 16,
    max_k: Annotated[int, typer.Option(help="Items per user.", rich_help_panel=LIMITS)] = 1000,
    max_queue: Annotated[
        int,
        typer.Option(help="Pairs that may wait for /predict; then 429.", rich_help_panel=LIMITS),
    ] = 50_000,
    max_queue_users: Annotated[
        int,
        typer.Option(
            help="Users, and pairs to explain, that may wait; then 429.", rich_help_panel=LIMITS
        ),
    ] = 512,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds until the body (408) and the answer (504) must be there.",
            rich_help_panel=LIMITS,
        ),
    ] = 10.0,
    drain: Annotated[
        float,
        typer.Option(
            help="Seconds that requests in flight have after SIGTERM.", rich_help_panel=LIMITS
        ),
    ] = 30.0,
) -> None:
    """Answer /predict, /recommend and /explain over HTTP until SIGTERM. See docs/serving.md."""
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        remedy = 'install it with: pip install "recsys-moe[serve]"'
        raise ConfigError(f"serve needs {', '.join(missing)}; {remedy}")
    from recsys_moe.serve.limits import Limits
    from recsys_moe.serve.server import Settings, read_key
    from recsys_moe.serve.server import serve as run

    limits = Limits(
        max_body=max_body,
        max_rows=max_rows,
        max_explain=max_explain,
        max_users=max_users,
        max_k=max_k,
        max_queue=max_queue,
        max_queue_users=max_queue_users,
        timeout=timeout,
        drain=drain,
    )
    key = read_key(api_key_file)
    names = tuple(allow_host or ())
    run(model, Settings(host, port, limits, key, watch, threads, access_log, names))
