"""Where the tasks of a preparation run: here one after the other, or on Dask.

Dask has processes or threads of this machine, or a cluster. Workers of a cluster need this
package, the input files and the folder beside `--out` under the same paths (a shared file system);
only ids, counts and paths travel between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from data_prep.options import did_you_mean
from recsys_moe.schema import ConfigError

Task = Callable[[Any], Any]
Mapper = Callable[[Task, Sequence[Any]], Iterable[Any]]
"""Like map(); results in the order of the arguments."""
ENGINES = ("stream", "dask")
LOCAL = ("processes", "threads", "synchronous")
"""Dask's schedulers on this machine."""


def mapper(engine: str, scheduler: str) -> Mapper:
    """The mapper of an engine; `scheduler`: one of LOCAL or the address of a Dask scheduler.

    Raises ConfigError for another scheduler, and when Dask is not installed.
    """
    if engine == "stream":
        return map
    try:
        return _on_this_machine(scheduler) if scheduler in LOCAL else _on_a_cluster(scheduler)
    except ModuleNotFoundError as error:
        missing = (error.name or "dask").partition(".")[0]
        raise ConfigError(
            f'--engine dask needs {missing}; pip install "recsys-moe[cluster]"'
        ) from None


def _on_this_machine(scheduler: str) -> Mapper:
    from dask.base import compute
    from dask.delayed import delayed

    def run(function: Task, tasks: Sequence[Any]) -> Iterable[Any]:
        lazy = delayed(function, pure=False)
        return list(compute(*(lazy(task) for task in tasks), scheduler=scheduler))

    return run


def _on_a_cluster(address: str) -> Mapper:
    if "://" not in address:
        raise ConfigError(
            f"--scheduler must be {', '.join(LOCAL)} or an address like tcp://host:8786, "
            f"got {address!r}{did_you_mean(address, LOCAL)}"
        )
    from distributed import Client

    return partial(_gathered, partial(Client, address, timeout=10))


def _gathered(connect: Callable[[], Any], function: Task, tasks: Sequence[Any]) -> Iterable[Any]:
    try:
        client = connect()
    except OSError as error:
        raise ConfigError(f"--scheduler: no Dask scheduler answers ({error})") from None
    with client:
        return list(client.gather(client.map(function, tasks, pure=False)))
