"""Figure 5: a map of the examples, coloured by their first expert.

Axes: N rows, D embedding width (user and item), T tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from recsys_moe.lab.report import plots
from recsys_moe.lab.report.run import Run

NEIGHBOURS = 10
MAP_ROWS = 3000
"""Examples on the map."""
LISTED = 64
"""Experts up to which the legend has each one."""
FEWEST_FOR_UMAP = 5
"""UMAP begins with the graph's eigenvectors, which fewer rows do not have."""


@dataclass(frozen=True)
class ExpertMap:
    """Embeddings of (user, item) pairs in two dimensions, and each one's top expert."""

    projection: str
    x: list[float]
    y: list[float]
    top: dict[str, list[int]]
    """Per task the top expert of each example; -1 where no expert took the example."""
    explained: float | None
    """Share of the variance that the two axes hold (PCA), None for UMAP."""
    neighbours: dict[str, float]
    """Per task the share of an example's 10 nearest ones, by Euclidean distance of the full
    embeddings and not on the map, that have the same top expert."""
    chance: dict[str, float]
    """The same share if neighbours were drawn at random."""


@torch.inference_mode()
def map_of(run: Run) -> ExpertMap:
    """The map of a sample of the rows that the run's model has routed."""
    shown, place_N = run.some(MAP_ROWS)
    x_ND = run.artifact.model.encode(shown.request)
    return expert_map(x_ND, run.sample.top_NT[place_N], run.tasks, run.options.seed)


def expert_map(x_ND: Tensor, top_NT: Tensor, tasks: list[str], seed: int) -> ExpertMap:
    """Project (N, D) embeddings to the plane: with UMAP where umap-learn is installed and there
    are enough rows, else with PCA."""
    explained, umap = None, _umap()
    if umap is None or len(x_ND) < FEWEST_FOR_UMAP:
        projection, (plane_N2, explained) = "PCA", _pca(x_ND)
    else:
        # McInnes, Healy and Melville 2018 (https://arxiv.org/abs/1802.03426), its defaults
        near = min(15, len(x_ND) - 1)
        reducer = umap.UMAP(n_components=2, n_neighbors=near, random_state=seed, n_jobs=1)
        projection = "UMAP"
        plane_N2 = torch.from_numpy(reducer.fit_transform(x_ND.numpy()).copy()).double()
    distance_NN = torch.cdist(x_ND, x_ND).fill_diagonal_(torch.inf)
    near_NK = distance_NN.argsort(stable=True)[:, : min(NEIGHBOURS, len(x_ND) - 1)]
    same_T = (top_NT[near_NK] == top_NT[:, None]).double().mean((0, 1))
    return ExpertMap(
        projection=projection,
        x=plane_N2[:, 0].tolist(),
        y=plane_N2[:, 1].tolist(),
        top=dict(zip(tasks, top_NT.T.tolist(), strict=True)),
        explained=explained,
        neighbours=dict(zip(tasks, same_T.tolist(), strict=True)),
        chance=dict(zip(tasks, map(_chance, top_NT.T), strict=True)),
    )


def _umap() -> Any:
    """The module, or None where umap-learn is not installed."""
    try:
        import umap
    except ImportError:
        return None
    return umap


def _pca(x_ND: Tensor) -> tuple[Tensor, float]:
    """Scores on the two main axes, each with the sign that makes its largest loading positive."""
    centred_ND = x_ND.double() - x_ND.double().mean(0)
    values_D, axes_DD = torch.linalg.eigh(centred_ND.T @ centred_ND)
    axes_D2 = axes_DD[:, [-1, -2]]
    signs_2 = axes_D2.gather(0, axes_D2.abs().argmax(0, keepdim=True)).sign()
    explained = float(values_D[-2:].sum() / values_D.sum().clamp(min=1e-30))
    return centred_ND @ (axes_D2 * signs_2), explained


def _chance(top_N: Tensor) -> float:
    """That another row drawn at random has the same top expert."""
    counts = torch.bincount(top_N + 1).double()
    return float((counts * (counts - 1)).sum() / max(len(top_N) * (len(top_N) - 1), 1))


def draw_map(data: ExpertMap) -> Figure:
    x, y = np.asarray(data.x), np.asarray(data.y)
    with plots.panels(len(data.top), height=4.1) as (figure, grid):
        for (task, tops), axes in zip(data.top.items(), grid, strict=True):
            top = np.asarray(tops)
            for e in np.unique(top).tolist():
                mine = top == e
                dots: dict[str, Any] = {"s": 7, "alpha": 0.7, "linewidths": 0, "rasterized": True}
                axes.scatter(x[mine], y[mine], **dots, **_look(e))
                if e >= 0:
                    middle = np.median(x[mine]), np.median(y[mine])
                    box = {"boxstyle": "round,pad=0.2", "fc": "#fefefe", "ec": plots.colour(e)}
                    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
                    axes.annotate(str(e), middle, bbox=box, color="#111111", **style)
            plots.titled(axes, "", f"{data.projection} 1", f"{data.projection} 2")
            plots.headed(axes, task)
            axes.set(xticks=[], yticks=[])
        seen = sorted({e for top in data.top.values() for e in top if e >= 0})
        if len(seen) <= LISTED:
            handles = [Line2D([], [], linestyle="none", label=str(e), **_look(e)) for e in seen]
            figure.legend(handles=handles, loc="outside lower center", ncols=16, columnspacing=1.0)
    return figure


def _look(expert: int) -> dict[str, Any]:
    """Of an expert's dots; -1 is no expert."""
    if expert < 0:
        return {"color": plots.LINE, "marker": "."}
    return {"color": plots.colour(expert), "marker": plots.marker(expert)}
