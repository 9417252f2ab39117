"""CPU seconds of each mixer: python -m research.mixers [--windows 64 --length 200 --dim 64]"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from recsys_moe.model.encoders.mixers import MIXERS


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Least of some repeats, in seconds of the processor."""
    work()
    found = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return min(found)


def row(name: str, windows: int, length: int, dim: int) -> str:
    torch.manual_seed(0)
    mixer = MIXERS[name](dim, length)
    x_MLD = torch.randn(windows, length, dim, requires_grad=True)
    time_ML = torch.rand(windows, length, dtype=torch.float64).cumsum(1) * 1e5
    state, one = mixer.start(1), (x_MLD[:1, 0], time_ML[:1, 0])
    both = seconds(lambda: mixer(x_MLD, time_ML).sum().backward())
    with torch.inference_mode():
        forward = seconds(lambda: mixer(x_MLD, time_ML))
        step = seconds(lambda: [mixer.step(*one, state) for _ in range(100)]) / 100
    weights = sum(weight.numel() for weight in mixer.parameters())
    floats = sum(part.numel() for part in state)
    figures = f"{forward:.3f} s | {both:.3f} s | {step * 1e6:.0f} us | {floats:,}"
    return f"| `{name}` | {weights:,} | {figures} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("windows", 64), ("length", 200), ("dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| mixer | weights | forward | forward and backward | one step | numbers of a state |")
    print("|---|---|---|---|---|---|")
    for name in MIXERS:
        print(row(name, asked.windows, asked.length, asked.dim))


if __name__ == "__main__":
    main()
