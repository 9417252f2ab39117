"""A random stream of its own for each module, on any device."""

from __future__ import annotations

import torch


class RandomStream:
    """A random generator on the device that draws from it.

    Without a seed it takes one from torch's default generator at its first draw, so streams differ
    from each other and follow from `torch.manual_seed`.
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
        # A copy keeps a given seed and otherwise takes a new one, so that experts or layers made by
        # deepcopy do not all draw the same.
        seed = self._seed if self._is_given else None
        return {"_generator": None, "_seed": seed, "_is_given": self._is_given}
