"""`recsys-moe serve`."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from recsys_moe.cli.inference import Model
from recsys_moe.errors import ConfigError

logger = logging.getLogger("recsys_moe.serve")
EXTRA = ("fastapi", "uvicorn", "prometheus_client")


def _limit(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Limits")


AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        help="Another name that requests may have in Host; * for any. On a loopback address "
        "only localhost and the address are allowed, elsewhere any name."
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the key that requests must carry (or RECSYS_MOE_API_KEY)."),
]
Watch = Annotated[
    float, typer.Option(help="Seconds between looks at the model folder; 0 for never.")
]
Rows = Annotated[int, _limit("Pairs of one /predict, candidates of one /recommend.")]
UsersWaiting = Annotated[int, _limit("Users, and pairs to explain, that may wait; then 429.")]
Timeout = Annotated[
    float, _limit("Seconds for an answer (else 504), and to keep an idle connection.")
]


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to bind; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    allow_host: AllowHost = None,
    api_key_file: KeyFile = None,
    watch: Watch = 2.0,
    threads: Annotated[
        int, typer.Option(min=1, max=1024, help="Threads of one tensor operation.")
    ] = 1,
    access_log: Annotated[bool, typer.Option("--access-log", help="A line per request.")] = False,
    max_body: Annotated[int, _limit("Bytes of a body.")] = 1 << 20,
    max_rows: Rows = 10_000,
    max_explain: Annotated[int, _limit("Pairs of one /explain.")] = 100,
    max_users: Annotated[int, _limit("Users of one /recommend.")] = 16,
    max_k: Annotated[int, _limit("Items per user.")] = 1000,
    max_queue: Annotated[int, _limit("Pairs that may wait for /predict; then 429.")] = 50_000,
    max_queue_users: UsersWaiting = 512,
    max_requests: Annotated[int, _limit("Requests that may wait; then 429.")] = 256,
    timeout: Timeout = 10.0,
    drain: Annotated[float, _limit("Seconds that requests in flight have after SIGTERM.")] = 30.0,
) -> None:
    """Answer /predict, /recommend and /explain over HTTP until SIGTERM. See
    docs/how-to/serve.md."""
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        remedy = 'install it with: pip install "recsys-moe[serve]"'
        raise ConfigError(f"serve needs {', '.join(missing)}; {remedy}")
    logger.info("loading torch and the model ...")
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
        max_requests=max_requests,
        timeout=timeout,
        drain=drain,
    )
    settings = Settings(
        host=host,
        port=port,
        limits=limits,
        key=read_key(api_key_file),
        watch=watch,
        threads=threads,
        access_log=access_log,
        hosts=tuple(allow_host or ()),
    )
    run(model, settings)
