"""Figure 2: losses of test rows with k experts and with all of them, of the same trained model.

A router that is a good sparse approximation of the dense mixture has nearly the same losses both
ways. Distances are Wasserstein-1 between the empirical distributions of the losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from examples.common.figures import canvas, save, titled
from examples.images.data import Batches, Rows
from examples.images.model import ImageMoE
from examples.images.module import EVAL_ROWS, ImageModule, row_losses
from examples.images.settings import Settings
from recsys_moe.errors import ConfigError

Losses = dict[str, npt.NDArray[np.float64]]
"""`sparse` and `dense` -> the loss of each row, the mean over its tasks."""
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "moesart": {"sparse": {"inference": "sparse"}, "dense": {"inference": "dense"}},
    "pps": {"sparse": {"inference": "sparse"}, "dense": {"inference": "dense"}},
    "softmax": {"sparse": {"inference": "topk"}, "dense": {"inference": "dense"}},
    "topk": {"sparse": {}, "dense": {"name": "softmax"}},
}
"""Changes of the router's settings. Dense `topk` is the softmax over the same logits; sparse
`softmax` renormalises its k largest weights (the paper does not say)."""

BINS, MOST_SHOWN = 60, 0.99
"""Bins of a histogram; its last one collects the losses above this quantile."""


def check(router: str) -> None:
    """Raise ConfigError for a router without both kinds of inference."""
    if router not in WAYS:
        known = ", ".join(WAYS)
        raise ConfigError(f"sparse and dense inference need one of {known}, got {router}")


@torch.inference_mode()
def losses(settings: Settings, run: Path, rows: Rows) -> Losses:
    """Of the best epoch of a finished run. Raises ConfigError."""
    check(settings.router)
    checkpoint = torch.load(run / "checkpoints" / "best.ckpt", "cpu", weights_only=True)
    module = ImageModule(settings, rows.shape)
    module.load_state_dict(checkpoint["state_dict"])
    found = {}
    for way, change in WAYS[settings.router].items():
        model = switched(module.model, settings, rows.shape, change)
        parts = [row_losses(model(x)[0], y_BT).mean(1) for x, y_BT in Batches(rows, EVAL_ROWS)]
        found[way] = torch.cat(parts).double().numpy()
    return found


def switched(
    model: ImageMoE, settings: Settings, shape: tuple[int, int], change: Mapping[str, Any]
) -> ImageMoE:
    """A model of the same parameters whose routers decide in another way."""
    chosen = {**model.chosen, **change}
    if chosen["name"] == "softmax":
        chosen = {key: chosen[key] for key in ("name", "inference") if key in chosen}
    if chosen.get("inference") == "topk":
        chosen["inference_k"] = settings.k
    own = ImageMoE(shape, settings.tasks, settings.experts, chosen)
    own.load_state_dict(model.state_dict())
    return own.eval()


def distances(by_router: Mapping[str, Losses]) -> list[dict[str, Any]]:
    """Within each router between its two ways (Fig. 2a, c, e), and from each sparsely trained
    router's sparse inference to the dense one of the densely trained (Fig. 2b, d)."""
    from scipy.stats import wasserstein_distance

    pairs = [((name, "sparse"), (name, "dense")) for name in by_router]
    if "softmax" in by_router:
        others = [name for name in by_router if name != "softmax"]
        pairs += [((name, "sparse"), ("softmax", "dense")) for name in others]
    return [
        {
            "one": " ".join(one),
            "other": " ".join(other),
            "wasserstein": float(
                wasserstein_distance(by_router[one[0]][one[1]], by_router[other[0]][other[1]])
            ),
        }
        for one, other in pairs
    ]


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
