"""What the experts specialise in: a map of the examples, and the genres each expert sees.

Axes: N rows, D embedding width (user and item), E experts, G genres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from recsys_moe.errors import ConfigError

NEIGHBOURS = 10
GENRES = "genres"
"""Column of items.parquet with names divided by `|`."""
FEWEST = 50
"""Rows a genre, or an expert, needs to be shown; below, shares are mostly chance."""
NAMED_GENRES = 2
NOTABLE = 1.25
"""Times as often as on average from which a genre is named for an expert."""
PROJECTIONS = ("pca", "umap")
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

    def notable(self, expert: int) -> list[tuple[str, float]]:
        """Up to NAMED_GENRES genres with a lift from NOTABLE on, the largest lifts first."""
        lifts = zip(self.genres, self.lift[expert], strict=True)
        notable = [(genre, lift) for genre, lift in lifts if lift and lift >= NOTABLE]
        return sorted(notable, key=lambda pair: (-pair[1], pair[0]))[:NAMED_GENRES]

    @property
    def strongest(self) -> tuple[float, int, str] | None:
        """The largest lift, its expert and genre; None where every expert has too few rows."""
        cells = (
            (lift, expert, genre)
            for expert, lifts in enumerate(self.lift)
            for lift, genre in zip(lifts, self.genres, strict=True)
            if lift is not None
        )
        return max(cells, default=None)


def expert_map(
    x_ND: Tensor, top_NT: Tensor, tasks: list[str], *, projection: str, seed: int
) -> ExpertMap:
    """Project (N, D) embeddings to the plane, few rows with PCA. Raises ConfigError without
    umap-learn."""
    if len(x_ND) < FEWEST_FOR_UMAP:
        projection = "pca"
    plane_N2, explained = _pca(x_ND) if projection == "pca" else (_umap(x_ND, seed), None)
    distance_NN = torch.cdist(x_ND, x_ND).fill_diagonal_(torch.inf)
    near_NK = distance_NN.argsort(stable=True)[:, : min(NEIGHBOURS, len(x_ND) - 1)]
    same_T = (top_NT[near_NK] == top_NT[:, None]).double().mean((0, 1))
    return ExpertMap(
        projection=projection.upper(),
        x=plane_N2[:, 0].tolist(),
        y=plane_N2[:, 1].tolist(),
        top=dict(zip(tasks, top_NT.T.tolist(), strict=True)),
        explained=explained,
        neighbours=dict(zip(tasks, same_T.tolist(), strict=True)),
        chance=dict(zip(tasks, map(_chance, top_NT.T), strict=True)),
    )


def _pca(x_ND: Tensor) -> tuple[Tensor, float]:
    """Scores on the two main axes, each with the sign that makes its largest loading positive."""
    centred_ND = x_ND.double() - x_ND.double().mean(0)
    values_D, axes_DD = torch.linalg.eigh(centred_ND.T @ centred_ND)
    axes_D2 = axes_DD[:, [-1, -2]]
    signs_2 = axes_D2.gather(0, axes_D2.abs().argmax(0, keepdim=True)).sign()
    explained = float(values_D[-2:].sum() / values_D.sum().clamp(min=1e-30))
    return centred_ND @ (axes_D2 * signs_2), explained


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
    near = min(15, len(x_ND) - 1)
    reducer = load_umap().UMAP(n_components=2, n_neighbors=near, random_state=seed, n_jobs=1)
    return torch.from_numpy(reducer.fit_transform(x_ND.numpy()).copy()).double()


def _chance(top_N: Tensor) -> float:
    """That another row drawn at random has the same top expert."""
    counts = torch.bincount(top_N + 1).double()
    return float((counts * (counts - 1)).sum() / max(len(top_N) * (len(top_N) - 1), 1))


def genre_of(items: pa.Table) -> pd.Series:
    """Names of genres, one row per item and genre, indexed by item; empty without the column."""
    if GENRES not in items.column_names:
        return pd.Series(dtype=str, name=GENRES)
    names = items[GENRES].cast(pa.string()).to_pandas().fillna("")
    genres = names.str.split("|", regex=False).explode()
    return genres[genres != ""].rename(GENRES)


def genre_breakdown(
    task: str, genres: pd.Series, item_N: Tensor, top_N: Tensor, *, experts: int
) -> GenreBreakdown | None:
    """None where no genre has FEWEST rows. `genres`: as of `genre_of`."""
    rows = pd.DataFrame({"item": item_N.numpy(), "top": top_N.numpy()})
    rows = rows[rows["top"] >= 0].join(genres, on="item", how="inner")
    table = pd.crosstab(rows["top"], rows[GENRES]).reindex(range(experts), fill_value=0)
    count = table.sum().sort_values(ascending=False, kind="stable")
    count = count[count >= FEWEST]
    if count.empty:
        return None
    share = table[count.index] / count
    first = rows["top"][~rows.index.duplicated()].value_counts().reindex(share.index, fill_value=0)
    overall = first / first.sum()
    shown = share.div(overall, axis=0).where(first >= FEWEST, axis=0).astype(object)
    return GenreBreakdown(
        task=task,
        genres=count.index.tolist(),
        rows=count.tolist(),
        share=share.to_numpy().tolist(),
        overall=overall.tolist(),
        lift=shown.where(shown.notna(), None).to_numpy().tolist(),
    )
