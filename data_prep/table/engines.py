"""Where the tasks of a preparation run: here one after the other, or on Dask.

Dask has processes or threads of this machine, or a cluster. Workers of a cluster need this
package, the input files and the folder of `--out` under the same paths (a shared file system);
only ids, counts and paths travel between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from data_prep.options import at_least, did_you_mean
from recsys_moe.schema import ConfigError

Task = Callable[[Any], Any]
Mapper = Callable[[Task, Sequence[Any]], Iterable[Any]]
"""Like map(); results in the order of the arguments."""
ENGINES = ("stream", "dask")
MEMORY_MB, SCHEDULER = 2048, "processes"
"""Defaults."""
LOCAL = ("processes", "threads", "synchronous")
"""Dask's schedulers on this machine."""


def bounds(engine: str, max_memory_mb: int | None, scheduler: str | None) -> dict[str, Any]:
    """How much memory, and the mapper, of an engine other than `memory`; {} of that one.

    Raises ConfigError for an option that the engine does not read, and what `mapper` raises.
    """
    _check_read("--max-memory-mb", max_memory_mb, engine, ENGINES)
    _check_read("--scheduler", scheduler, engine, ("dask",))
    if engine == "memory":
        return {}
    memory_mb = MEMORY_MB if max_memory_mb is None else max_memory_mb
    at_least("--max-memory-mb", memory_mb, 1)
    made = mapper(engine, SCHEDULER if scheduler is None else scheduler)
    return {"max_memory_mb": memory_mb, "mapper": made}


def _check_read(option: str, value: object, engine: str, engines: tuple[str, ...]) -> None:
    if value is not None and engine not in engines:
        raise ConfigError(
            f"{option} needs --engine {' or '.join(engines)}, got {engine}; "
            "pass one of them, or omit the option"
        )


def mapper(engine: str, scheduler: str) -> Mapper:
    """The mapper of an engine; `scheduler`: one of LOCAL or the address of a Dask scheduler.

    Raises ConfigError for another scheduler, and when Dask is not installed.
    """
    if engine == "stream":
        return map
    here = scheduler in LOCAL
    if not here and "://" not in scheduler:
        raise ConfigError(
            f"--scheduler must be {', '.join(LOCAL)} or an address like tcp://host:8786, "
            f"got {scheduler!r}{did_you_mean(scheduler, LOCAL)}"
        )
    for needed in ("dask",) if here else ("dask", "distributed"):
        try:
            import_module(needed)
        except ModuleNotFoundError:
            raise ConfigError(
                f'--engine dask needs {needed}; pip install "recsys-moe[cluster]"'
            ) from None
    return partial(_on_dask, scheduler)


def _on_dask(scheduler: str, function: Task, tasks: Sequence[Any]) -> Iterable[Any]:
    from dask.base import compute
    from dask.delayed import delayed

    lazy = [delayed(function, pure=False)(task) for task in tasks]
    if scheduler in LOCAL:
        return compute(*lazy, scheduler=scheduler)
    from distributed import Client

    try:
        client = Client(scheduler, timeout=10)
    except OSError as error:
        raise ConfigError(
            f"--scheduler {scheduler}: cannot reach a Dask scheduler ({error})"
        ) from None
    with client:
        return compute(*lazy)
