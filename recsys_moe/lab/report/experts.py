"""Load, similarity and routing statistics of the experts on a sample of rows.

Axes: N rows, T tasks, E experts, H expert width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recsys_moe.artifact.idle import idle_experts, spared_experts
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.data.rows import Columns
from recsys_moe.lab.report.sample import Sample

TWINS = 0.95
"""Cosine from which two experts are called nearly identical."""
BINS = 30
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class ExpertLoad:
    """Expert load. Shares are of the rows unless said otherwise; experts by index."""

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
    """Per task the visits of each expert if all were equal."""
    idle: list[int]
    """See `artifact.idle`."""
    light: list[int]
    """Of the others, those with less than IDLE of an even share of the weight in every task."""

    def spared(self, task: str) -> list[int]:
        """Experts that this task rarely uses and another task uses."""
        return [expert for expert in spared_experts(self.visits[task]) if expert not in self.idle]

    def spared_by(self, expert: int) -> list[str]:
        """Tasks that rarely use it while another task uses it."""
        return [task for task in self.visits if expert in self.spared(task)]


@dataclass(frozen=True)
class Sharpness:
    """How concentrated the routing is."""

    rows: int
    edges: list[float]
    """Borders of the bins of entropy, from 0 to ln E nats."""
    entropy: dict[str, list[float]]
    """Per task the share of rows in each bin; without rows that have no expert."""
    mean: dict[str, float]
    """Mean entropy in nats; NaN if no row has an expert."""
    mass: dict[str, list[float]]
    """[j]: mean probability of the j + 1 most probable experts together."""
    kept: dict[str, int]
    """The router's k; the number of experts where it has none."""
    basis: dict[str, str]
    """`probabilities` of the router, or its `weights` where it has no probabilities."""

    @property
    def held(self) -> dict[str, float]:
        """Per task the mean share of the k most probable experts."""
        return {task: mass[self.kept[task] - 1] for task, mass in self.mass.items()}


@dataclass(frozen=True)
class Likeness:
    """Similarity of the experts as functions."""

    rows: int
    cosine: list[list[float | None]]
    """[a][b]: cosine of the outputs on all rows, laid end to end; None with an output of 0."""
    twins: list[tuple[int, int, float]]
    """Pairs from TWINS on, the most similar first."""
    silent: list[int]
    """Experts whose output is 0 on every row."""

    def nearest(self, expert: int) -> tuple[int, float] | None:
        """The most similar expert and the cosine; None for an output of 0, or without others."""
        others = {b: c for b, c in enumerate(self.cosine[expert]) if b != expert and c is not None}
        return max(others.items(), key=lambda pair: pair[1], default=None)


def expert_load(sample: Sample, tasks: list[str]) -> ExpertLoad:
    """Loads by task. Raises nothing: with no visits at all every share is 0."""
    rows, experts = max(sample.rows, 1), sample.visits_TE.shape[1]
    visits_TE = sample.visits_TE / rows
    weight_TE = sample.weight_TE / sample.weight_TE.sum(1, keepdim=True).clamp(min=1e-30)
    even_T = visits_TE.mean(1)
    first = [torch.bincount(top_N + 1, minlength=experts + 1) for top_N in sample.top_NT.unbind(1)]
    idle, light = idle_experts(visits_TE.tolist()), idle_experts(weight_TE.tolist())
    return ExpertLoad(
        rows=sample.rows,
        visits=_by(tasks, visits_TE),
        first=_by(tasks, torch.stack(first)[:, 1:] / rows),
        weight=_by(tasks, weight_TE),
        either=(sample.either_E / rows).tolist(),
        even=_by(tasks, even_T),
        idle=idle,
        light=[expert for expert in light if expert not in idle],
    )


def _by(tasks: list[str], values_T: Tensor) -> dict[str, Any]:
    """Plain numbers per task; the tasks are the first axis."""
    return dict(zip(tasks, values_T.tolist(), strict=True))


def sharpness(sample: Sample, tasks: list[str], kept: list[int]) -> Sharpness:
    """Entropy and mass of the routing distributions. `kept`: the k of each task's router."""
    experts = sample.mass_TE.shape[1]
    most = math.log(experts) if experts > 1 else 1.0
    return Sharpness(
        rows=sample.rows,
        edges=torch.linspace(0, most, BINS + 1, dtype=torch.float64).tolist(),
        entropy=_by(tasks, torch.stack([_bins(e_N, most) for e_N in sample.entropy_NT.unbind(1)])),
        mean=_by(tasks, sample.entropy_NT.double().nanmean(0)),
        mass=_by(tasks, sample.mass_TE / max(sample.rows, 1)),
        kept=dict(zip(tasks, kept, strict=True)),
        basis={
            task: "probabilities" if dense else "weights"
            for task, dense in zip(tasks, sample.dense_T, strict=True)
        },
    )


def _bins(entropy_N: Tensor, most: float) -> Tensor:
    """Share of the rows in each of BINS bins from 0 to `most`. (BINS,)"""
    known_N = entropy_N[~entropy_N.isnan()].double()
    return torch.histc(known_N.clamp(0, most), BINS, 0, most) / max(len(known_N), 1)


@torch.inference_mode()
def likeness(artifact: Artifact, columns: Columns) -> Likeness:
    """Cosines of relu(x W_a + b_a) and relu(x W_b + b_b) over all rows, visited or not.

    Compares functions on the examples, not weights. The order of the hidden units counts, because
    the towers read them in that order. Outputs are never negative, so that unrelated experts are
    well above 0.
    """
    experts = artifact.model.experts
    assert experts is not None
    x_ND = artifact.model.encode(columns.request)
    products_EE = x_ND.new_zeros(2 * (len(experts.bias_EH),), dtype=torch.float64)
    for x_BD in x_ND.split(ROWS_AT_ONCE):
        hidden_EBH = torch.baddbmm(
            experts.bias_EH[:, None], x_BD.expand(len(products_EE), -1, -1), experts.kernel_EDH
        ).relu_()
        flat_EF = hidden_EBH.flatten(1)
        products_EE += (flat_EF @ flat_EF.T).double()
    norm_E = products_EE.diagonal().sqrt()
    cosine_EE = (products_EE / (norm_E[:, None] * norm_E)).clamp(-1, 1)
    pairs = (cosine_EE >= TWINS).triu(1).nonzero().tolist()
    twins = [(a, b, float(cosine_EE[a, b])) for a, b in pairs]
    return Likeness(
        rows=len(columns),
        cosine=[[None if math.isnan(v) else v for v in row] for row in cosine_EE.tolist()],
        twins=sorted(twins, key=lambda pair: -pair[2]),
        silent=(norm_E == 0).nonzero()[:, 0].tolist(),
    )
