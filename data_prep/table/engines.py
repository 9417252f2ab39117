"""Where the tasks of a preparation run: here one after the other, or on Dask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from recsys_moe.schema import ConfigError

Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Like map(); results in the order of the arguments."""
ENGINES = ("stream", "dask")


def mapper(engine: str, scheduler: str) -> Mapper:
    """The mapper of an engine. Raises ConfigError when it is not installed."""
    if engine == "stream":
        return map
    try:
        from data_prep.table import dask_table

        return dask_table.mapper(scheduler)
    except ModuleNotFoundError as error:
        missing = (error.name or "dask").partition(".")[0]
        raise ConfigError(
            f'--engine dask needs {missing}; pip install "recsys-moe[cluster]"'
        ) from None
