"""A random stream of its own for each module, on any device."""

from __future__ import annotations

import torch

from recsys_moe.routers.replay import refuse_unknown_reruns, replayed


class RandomStream:
    """A random generator on the device that draws from it.

    Without a seed it takes one from torch's default generator at its first draw, so streams differ
    from each other and follow from `torch.manual_seed`.
    Reseeding before every step makes the draws a function of (seed, step) alone, so that a
    resumed run needs no generator state. What `torch.utils.checkpoint` runs again draws again what
    it drew first.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._generator: torch.Generator | None = None
        self._seed, self._is_given = seed, seed is not None

    def reseed(self, seed: int) -> None:
        self._seed, self._is_given = seed, True
        if self._generator is not None:
            self._generator.manual_seed(seed)

    @property
    def drawn_from(self) -> torch.Generator | None:
        """The generator of the last draw."""
        return self._generator

    def generator(self, device: torch.device) -> torch.Generator:
        """The generator for the next draws; ask for it anew each time."""
        is_new = self._seed is None
        if self._seed is None:
            self._seed = _fresh_seed()
        if self._generator is None or self._generator.device.type != device.type:
            self._generator = torch.Generator(device=device)
            self._generator.manual_seed(self._seed)
        generator = self._generator
        drawn = replayed(self, lambda: (generator.get_state(), is_new))
        if drawn is not None:
            return _as_before(device, *drawn)
        refuse_unknown_reruns()
        return generator

    def __getstate__(self) -> dict[str, object]:
        # A copy keeps a given seed and otherwise takes a new one, so that experts or layers made by
        # deepcopy do not all draw the same.
        seed = self._seed if self._is_given else None
        return {"_generator": None, "_seed": seed, "_is_given": self._is_given}


def _fresh_seed() -> int:
    return int(torch.randint(2**63 - 1, ()))


def _as_before(device: torch.device, state: torch.Tensor, took_seed: bool) -> torch.Generator:
    """A generator in `state`; torch's own moves on as it did if the stream took its seed then."""
    if took_seed:
        _fresh_seed()
    generator = torch.Generator(device=device)
    generator.set_state(state)
    return generator
