"""Which routers of a model draw random numbers at evaluation, and where those start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from recsys_moe.routers import Router


class Draws:
    """The random numbers of a model that scores. Thread-safe."""

    def __init__(self, routers: Sequence[Router], reseed: Callable[[int], None], seed: int) -> None:
        """`reseed`: of the model of these routers; `seed`: where each forward pass starts."""
        self._reseed, self._seed = reseed, seed
        self._one_at_a_time = threading.Lock()
        self.by_task = [_draws(router) for router in routers]
        self._together = any(router.batch_dependent for router in routers)

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """For a forward pass whose random numbers, if a router draws any, start at the seed.

        Reseeding and drawing are one step: a model that draws serves one thread at a time.
        """
        if not any(self.by_task):
            yield
            return
        with self._one_at_a_time:
            self._reseed(self._seed)
            yield

    @property
    def rows_are_independent(self) -> bool:
        """Is the routing of a row a function of that row alone?"""
        return not any(self.by_task) and not self._together


def _draws(router: Router) -> bool:
    """Does evaluation consume random numbers? Then a row's routing depends on its place."""
    generator = router.stream.generator(torch.device("cpu"))
    before = generator.get_state()
    with torch.inference_mode():
        router(torch.zeros(1, router.shape.input_dim), torch.zeros(1, dtype=torch.long))
    return not torch.equal(before, generator.get_state())
