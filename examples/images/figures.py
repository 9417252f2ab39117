"""Pictures of losses under both inferences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.common.figures import canvas, save, titled
from examples.images.inference import Losses

BINS, MOST_SHOWN = 60, 0.99
"""Bins of a histogram, and the quantile of all losses where its last one begins to collect."""


def draw_inference(
    out: Path, name: str, by_router: Mapping[str, Losses], distances: Sequence[Mapping[str, Any]]
) -> None:
    """A panel per router: its losses with k experts and with all of them."""
    figure, axes = canvas(len(by_router))
    everything = np.concatenate([v for losses in by_router.values() for v in losses.values()])
    edges = np.linspace(0, float(np.quantile(everything, MOST_SHOWN)), BINS + 1)
    numbers: dict[str, Any] = {"edges": edges.tolist(), "wasserstein": list(distances)}
    for panel, (router, losses) in zip(axes, by_router.items(), strict=True):
        for way, values in losses.items():
            shares = np.histogram(np.minimum(values, edges[-1]), edges)[0] / len(values)
            panel.stairs(shares, edges, label=f"{way}, mean {values.mean():.4f}")
            numbers[f"{router} {way}"] = {"mean": values.mean(), "shares": shares.tolist()}
        titled(panel, router, "loss of a row", "share of rows")
        panel.set_yscale("log")
    save(figure, out, name, numbers)
