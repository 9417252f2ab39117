"""Communication between the processes of a run; a single process gets its own value back.

Every process must make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from recsys_moe.errors import RunError

T = TypeVar("T")
R = TypeVar("R")


def process_count() -> int:
    return dist.get_world_size() if _several() else 1


def all_sum(values: Tensor) -> Tensor:
    """Sum over all processes, with the same bits in each."""
    if not _several():
        return values
    total = values.clone()
    dist.all_reduce(total)
    return total


def all_mean(values: Tensor) -> Tensor:
    """Mean over all processes, with the same bits in each."""
    return all_sum(values) / process_count() if _several() else values


def on_first(value: T, merge: Callable[[list[T]], R]) -> R:
    """`merge` of the values of all processes by rank, computed by the first and sent to all."""
    if not _several():
        return merge([value])
    is_first = dist.get_rank() == 0
    values: list[Any] | None = [None] * dist.get_world_size() if is_first else None
    dist.gather_object(value, values)
    result = [merge(values) if values is not None else None]
    dist.broadcast_object_list(result)
    return result[0]  # type: ignore[return-value]


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


@contextmanager
def lost_peers() -> Iterator[None]:
    """Raise RunError where another process of the run ended."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "third_party/gloo" in str(error)):
            raise
        raise RunError(
            "another process of this run has ended or cannot be reached; see its error, then "
            "continue with --resume auto"
        ) from None
