"""The tasks of `prepare table` on Dask: processes or threads of this machine, or a cluster.

Workers of a cluster need this package, the input files and the folder beside `--out` under the
same paths (a shared file system); only ids, counts and paths travel between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from dask.base import compute
from dask.delayed import delayed

from data_prep.options import did_you_mean
from data_prep.table.engines import Mapper
from recsys_moe.schema import ConfigError

Task = Callable[[Any], Any]
LOCAL = ("processes", "threads", "synchronous")


def mapper(scheduler: str) -> Mapper:
    """`scheduler`: one of LOCAL, or the address of a Dask scheduler. Raises ConfigError."""
    if scheduler in LOCAL:
        return partial(_compute, scheduler=scheduler)
    if "://" not in scheduler:
        raise ConfigError(
            f"--scheduler must be {', '.join(LOCAL)} or an address like tcp://host:8786, "
            f"got {scheduler!r}{did_you_mean(scheduler, LOCAL)}"
        )
    from distributed import Client

    return partial(_on_cluster, partial(Client, scheduler, timeout=10))


def _compute(function: Task, tasks: Sequence[Any], **options: Any) -> Iterable[Any]:
    lazy = delayed(function, pure=False)
    return list(compute(*(lazy(task) for task in tasks), **options))


def _on_cluster(connect: Callable[[], Any], function: Task, tasks: Sequence[Any]) -> Iterable[Any]:
    try:
        client = connect()
    except OSError as error:
        raise ConfigError(f"--scheduler: no Dask scheduler answers ({error})") from None
    with client:
        return list(client.gather(client.map(function, tasks, pure=False)))
