"""What the experts specialise in: a map of the examples, and the genres each expert sees.

Axes: N rows, D embedding width (user and item), E experts, G genres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import torch
from torch import Tensor

from recsys_moe.errors import ConfigError

NEIGHBOURS = 10
GENRES = "genres"
"""Column of items.parquet with names divided by `|`."""
FEWEST = 50
"""Rows a genre, or an expert, needs to be shown; below, shares are mostly chance."""
Projection = Literal["pca", "umap"]


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


@dataclass(frozen=True)
class GenreBreakdown:
    """Which genres go to which expert, for one task."""

    task: str
    genres: list[str]
    """Most rows first."""
    rows: list[int]
    """Rows of the sample whose item has the genre; an item with two genres counts in both."""
    share: list[list[float]]
    """[expert][genre]: share of the genre's rows whose top expert this is."""
    overall: list[float]
    """Share of all rows of known genre whose top expert this is."""
    lift: list[list[float | None]]
    """share / overall: 1 is as often as on average; None for an expert that is the first choice of
    fewer than FEWEST rows."""


def expert_map(
    x_ND: Tensor, top_NT: Tensor, tasks: list[str], *, projection: Projection, seed: int
) -> ExpertMap:
    """Project (N, D) embeddings to the plane. Raises ConfigError without umap-learn."""
    plane_N2, explained = _pca(x_ND) if projection == "pca" else (_umap(x_ND, seed), None)
    near_NK = _nearest(x_ND)
    columns = dict(zip(tasks, top_NT.unbind(1), strict=True))
    return ExpertMap(
        projection=projection.upper(),
        x=plane_N2[:, 0].tolist(),
        y=plane_N2[:, 1].tolist(),
        top={name: top_N.tolist() for name, top_N in columns.items()},
        explained=explained,
        neighbours={
            name: float((top_N[near_NK] == top_N[:, None]).double().mean())
            for name, top_N in columns.items()
        },
        chance={name: _same_by_chance(top_N) for name, top_N in columns.items()},
    )


def _pca(x_ND: Tensor) -> tuple[Tensor, float]:
    """Scores on the two main axes, each with the sign that makes its largest loading positive."""
    centred_ND = x_ND.double() - x_ND.double().mean(0)
    values_D, axes_DD = torch.linalg.eigh(centred_ND.T @ centred_ND)
    axes_D2 = axes_DD[:, [-1, -2]]
    largest_2 = axes_D2.abs().argmax(0)
    axes_D2 = axes_D2 * axes_D2[largest_2, torch.arange(2)].sign()
    explained = float(values_D[-2:].sum() / values_D.sum().clamp(min=1e-30))
    return centred_ND @ axes_D2, explained


def load_umap() -> Any:
    """The module. Raises ConfigError naming the extra that brings it."""
    try:
        import umap
    except ImportError:
        raise ConfigError(
            '--map umap needs umap-learn: pip install "recsys-moe[report]", or use --map pca'
        ) from None
    return umap


def _umap(x_ND: Tensor, seed: int) -> Tensor:
    """McInnes, Healy and Melville 2018 (https://arxiv.org/abs/1802.03426), its defaults."""
    reducer = load_umap().UMAP(n_components=2, random_state=seed, n_jobs=1)
    return torch.from_numpy(reducer.fit_transform(x_ND.numpy()).copy()).double()


def _nearest(x_ND: Tensor) -> Tensor:
    """Indices of each row's nearest others, in blocks of rows. (N, K)"""
    most = min(NEIGHBOURS, len(x_ND) - 1)
    nearest = []
    for first, x_BD in zip(range(0, len(x_ND), 512), x_ND.split(512), strict=True):
        distance_BN = torch.cdist(x_BD, x_ND)
        own_B = torch.arange(len(x_BD))
        distance_BN[own_B, own_B + first] = torch.inf
        nearest.append(distance_BN.topk(most, largest=False).indices)
    return torch.cat(nearest)


def _same_by_chance(top_N: Tensor) -> float:
    """Chance that another row drawn at random has the same top expert."""
    counts = torch.bincount(top_N + 1).double()
    return float((counts * (counts - 1)).sum() / max(len(top_N) * (len(top_N) - 1), 1))


def genre_table(items: pa.Table) -> tuple[list[str], Tensor] | None:
    """Names of the genres and bool (items + 1, genres), the last row for an unseen item.

    None where the items have no column of genres.
    """
    if GENRES not in items.column_names:
        return None
    lists = [(text or "").split("|") for text in items[GENRES].cast(pa.string()).to_pylist()]
    names = sorted({name for genres in lists for name in genres if name})
    place = {name: number for number, name in enumerate(names)}
    pairs = [(row, place[g]) for row, genres in enumerate(lists) for g in genres if g]
    table = torch.zeros(len(lists) + 1, len(names), dtype=torch.bool)
    if pairs:
        table[tuple(torch.tensor(pairs).T)] = True
    return (names, table) if names else None


def genre_breakdown(
    task: str, names: list[str], has_NG: Tensor, top_N: Tensor, *, experts: int
) -> GenreBreakdown | None:
    """None where no genre has FEWEST rows. `has_NG`: which genres the item of each row has."""
    has_NG = has_NG[top_N >= 0]
    top_N = top_N[top_N >= 0]
    rows_G = has_NG.sum(0)
    shown = [
        g for g in rows_G.argsort(descending=True, stable=True).tolist() if rows_G[g] >= FEWEST
    ]
    if not shown:
        return None
    is_top_NE = torch.nn.functional.one_hot(top_N, experts).double()
    share_EG = (is_top_NE.T @ has_NG[:, shown].double()) / rows_G[shown]
    known_NE = is_top_NE[has_NG.any(1)]
    overall_E = known_NE.mean(0)
    lift_EG = share_EG / overall_E[:, None]
    return GenreBreakdown(
        task=task,
        genres=[names[g] for g in shown],
        rows=rows_G[shown].tolist(),
        share=share_EG.tolist(),
        overall=overall_E.tolist(),
        lift=[
            row if first >= FEWEST else [None] * len(row)
            for row, first in zip(lift_EG.tolist(), known_NE.sum(0).tolist(), strict=True)
        ],
    )
