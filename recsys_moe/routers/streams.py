"""A stream of random numbers, for routers and for dropout."""

from __future__ import annotations

import torch


class RandomStream:
    """A random generator that lives on the device of whoever draws from it.

    Reseeding before every step makes the draws a function of (seed, step) alone, so that a
    resumed run needs no generator state.
    """

    def __init__(self, seed: int = 0) -> None:
        self._generator: torch.Generator | None = None
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self._seed = seed
        if self._generator is not None:
            self._generator.manual_seed(seed)

    def generator(self, device: torch.device) -> torch.Generator:
        if self._generator is None or self._generator.device.type != device.type:
            self._generator = torch.Generator(device=device)
            self._generator.manual_seed(self._seed)
        return self._generator

    def __getstate__(self) -> dict[str, object]:
        # Generators can be neither pickled nor deep-copied on every torch >= 2.6.
        return {"_generator": None, "_seed": self._seed}
