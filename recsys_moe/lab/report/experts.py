"""What the experts and the routers of a model do on a sample of rows.

Axes: N rows, T tasks, E experts, H expert width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.data.columns import Columns
from recsys_moe.lab.report.sample import Sample

IDLE = 0.1
"""An expert with less than this part of an even share is called idle."""
TWINS = 0.95
"""Cosine from which two experts are called nearly identical."""
BINS = 30
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class ExpertLoad:
    """Where examples go. All shares are of the rows unless said otherwise; experts by index."""

    rows: int
    visits: dict[str, list[float]]
    """Per task the share of rows that select each expert; sums to the experts per example."""
    first: dict[str, list[float]]
    """Per task the share of rows whose top expert each expert is."""
    weight: dict[str, list[float]]
    """Per task each expert's share of all routing weight; sums to 1."""
    either: list[float]
    """Share of rows that select each expert for any task."""
    even: dict[str, float]
    """Per task the visits of each expert if all had the same."""
    idle: list[int]
    """Experts with less than IDLE of an even share of the visits in every task."""
    light: list[int]
    """Of the others, those with less than IDLE of an even share of the weight in every task."""


@dataclass(frozen=True)
class Sharpness:
    """How decided the routers are."""

    rows: int
    edges: list[float]
    """Borders of the bins of entropy, from 0 to ln E nats."""
    entropy: dict[str, list[float]]
    """Per task the share of rows in each bin; rows that no expert took are left out."""
    mean: dict[str, float]
    """Mean entropy in nats; NaN where no expert took any row."""
    mass: dict[str, list[float]]
    """[j]: mean probability of the j + 1 most probable experts together."""
    kept: dict[str, int]
    """The router's k; the number of experts where it has none."""
    basis: dict[str, str]
    """`probabilities` of the router, or its `weights` where it has no probabilities."""


@dataclass(frozen=True)
class Likeness:
    """How alike the experts are as functions."""

    rows: int
    cosine: list[list[float | None]]
    """[a][b]: cosine of the outputs on all rows, laid end to end; None with an output of 0."""
    twins: list[tuple[int, int, float]]
    """Pairs from TWINS on, the most alike first."""
    silent: list[int]
    """Experts whose output is 0 on every row."""


def expert_load(sample: Sample, tasks: list[str]) -> ExpertLoad:
    """Loads by task. Raises nothing: with no visits at all every share is 0."""
    rows, experts = max(sample.rows, 1), sample.visits_TE.shape[1]
    visits_TE = sample.visits_TE / rows
    weight_TE = sample.weight_TE / sample.weight_TE.sum(1, keepdim=True).clamp(min=1e-30)
    even_T = visits_TE.mean(1)
    idle_E = (visits_TE <= IDLE * even_T[:, None]).all(0)
    light_E = (weight_TE <= IDLE / experts).all(0) & ~idle_E
    first = [_shares(top_N, experts) for top_N in sample.top_NT.unbind(1)]
    return ExpertLoad(
        rows=sample.rows,
        visits=dict(zip(tasks, visits_TE.tolist(), strict=True)),
        first=dict(zip(tasks, first, strict=True)),
        weight=dict(zip(tasks, weight_TE.tolist(), strict=True)),
        either=(sample.either_E / rows).tolist(),
        even=dict(zip(tasks, even_T.tolist(), strict=True)),
        idle=idle_E.nonzero()[:, 0].tolist(),
        light=light_E.nonzero()[:, 0].tolist(),
    )


def _shares(top_N: Tensor, experts: int) -> list[float]:
    shares: list[float] = (torch.bincount(top_N + 1, minlength=experts + 1) / len(top_N)).tolist()
    return shares[1:]


def sharpness(sample: Sample, tasks: list[str], kept: list[int]) -> Sharpness:
    """Entropy and mass of the routing distributions. `kept`: the k of each task's router."""
    experts = sample.mass_TE.shape[1]
    most = math.log(experts) if experts > 1 else 1.0
    columns = dict(zip(tasks, sample.entropy_NT.unbind(1), strict=True))
    return Sharpness(
        rows=sample.rows,
        edges=torch.linspace(0, most, BINS + 1, dtype=torch.float64).tolist(),
        entropy={name: _histogram(values_N, most) for name, values_N in columns.items()},
        mean={name: float(values_N.double().nanmean()) for name, values_N in columns.items()},
        mass=dict(zip(tasks, sample.mass_TE.tolist(), strict=True)),
        kept=dict(zip(tasks, kept, strict=True)),
        basis={
            name: "probabilities" if dense else "weights"
            for name, dense in zip(tasks, sample.dense_T, strict=True)
        },
    )


def _histogram(values_N: Tensor, most: float) -> list[float]:
    known_N = values_N[~values_N.isnan()]
    counts = torch.histc(known_N.double().clamp(0, most), BINS, 0, most)
    shares: list[float] = (counts / max(len(known_N), 1)).tolist()
    return shares


@torch.inference_mode()
def likeness(artifact: Artifact, columns: Columns) -> Likeness:
    """Cosines of relu(x W_a + b_a) and relu(x W_b + b_b) over all rows, visited or not.

    Of the functions and not of the weights: what differs only where no example lies is alike. The
    order of the hidden units counts, because the towers read them in that order. Outputs are
    never negative, so that unrelated experts come out well above 0.
    """
    experts = artifact.model.moe.experts
    x_ND = artifact.model.encode(columns.user, columns.item)
    products_EE = x_ND.new_zeros(2 * (len(experts.bias_EH),), dtype=torch.float64)
    for x_BD in x_ND.split(ROWS_AT_ONCE):
        hidden_EBH = torch.baddbmm(
            experts.bias_EH[:, None], x_BD.expand(len(products_EE), -1, -1), experts.kernel_EDH
        ).relu_()
        flat_EF = hidden_EBH.flatten(1)
        products_EE += (flat_EF @ flat_EF.T).double()
    norm_E = products_EE.diagonal().sqrt()
    cosine_EE = (products_EE / (norm_E[:, None] * norm_E)).clamp(-1, 1)
    return Likeness(
        rows=len(columns),
        cosine=[[None if math.isnan(v) else v for v in row] for row in cosine_EE.tolist()],
        twins=_twins(cosine_EE),
        silent=(norm_E == 0).nonzero()[:, 0].tolist(),
    )


def _twins(cosine_EE: Tensor) -> list[tuple[int, int, float]]:
    upper_EE = (cosine_EE >= TWINS).triu(1)
    pairs = [(a, b, float(cosine_EE[a, b])) for a, b in upper_EE.nonzero().tolist()]
    return sorted(pairs, key=lambda pair: (-pair[2], pair[:2]))
