"""Random numbers of a part of its own, on whatever device it draws them."""

from __future__ import annotations

import torch


class RandomStream:
    """A random generator that lives on the device of whoever draws from it.

    Without a seed it takes one from torch's default generator at its first draw: so streams
    differ from each other by construction, and `torch.manual_seed` decides what they are.
    Reseeding before every step makes the draws a function of (seed, step) alone, so that a
    resumed run needs no generator state.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._generator: torch.Generator | None = None
        self._seed, self._is_given = seed, seed is not None

    def reseed(self, seed: int) -> None:
        self._seed, self._is_given = seed, True
        if self._generator is not None:
            self._generator.manual_seed(seed)

    def generator(self, device: torch.device) -> torch.Generator:
        if self._seed is None:
            self._seed = int(torch.randint(2**63 - 1, ()))
        if self._generator is None or self._generator.device.type != device.type:
            self._generator = torch.Generator(device=device)
            self._generator.manual_seed(self._seed)
        return self._generator

    def __getstate__(self) -> dict[str, object]:
        # A copy begins anew: with the seed that was given, otherwise with one of its own, so that
        # experts or layers made by deepcopy do not all draw the same.
        seed = self._seed if self._is_given else None
        return {"_generator": None, "_seed": seed, "_is_given": self._is_given}
