"""The ERC loss: an expert answers most to the inputs that its router sends there.

Lv et al. 2025, "Coupling Experts and Routers in Mixture-of-Experts via an Auxiliary Loss",
https://arxiv.org/abs/2512.23447, eq. (3); taken from summaries, as the paper could not be read in
full. Axes: E experts, D input width, H expert width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys_moe.errors import ConfigError
from recsys_moe.model.experts import Experts
from recsys_moe.routers import Router

COUPLING = "coupling"
"""Its name among the penalties; those of penalties.py read routings, this reads parameters."""


def coupling_of(router: Router, experts: object, weight: float) -> Tensor:
    """Of one router and the shared experts, (). In training the rows are perturbed.

    Raises ConfigError for a router without a row for each expert, or other experts than `Experts`.
    """
    rows_ED = router.expert_rows
    if rows_ED is None or not isinstance(experts, Experts):
        lacks = "a router without a gate row per expert" if rows_ED is None else "expert modules"
        raise ConfigError(
            f"penalties.{COUPLING} must be 0 with {lacks}, got {weight}; set it to 0 or choose "
            + ("another router" if rows_ED is None else "Experts")
        )
    if router.training:
        generator = router.stream.generator(rows_ED.device)
        uniform_ED = torch.rand(
            rows_ED.shape, generator=generator, dtype=rows_ED.dtype, device=rows_ED.device
        )
        rows_ED = perturbed(rows_ED, uniform_ED)
    return coupling(rows_ED, experts.kernel_EDH.to(rows_ED.dtype))


def coupling(rows_ED: Tensor, kernel_EDH: Tensor) -> Tensor:
    """Mean over all (i, j) of max(M_ij - M_ii, 0) + max(M_ji - M_ii, 0), M_ij = |row_i W_j|. ().

    0 where every gate row excites its own expert most, and every expert answers most to its own.
    The paper's alpha, a factor on M_ii, is 1 here, its best value for few experts. The gradient
    reaches rows and kernels.
    """
    by_expert_EEH = rows_ED @ kernel_EDH  # a product per expert, with no copy of the kernels
    norms_EE = torch.linalg.vector_norm(by_expert_EEH, dim=-1).t()
    own_E = norms_EE.diagonal()
    of_row_EE = (norms_EE - own_E[:, None]).relu()
    of_expert_EE = (norms_EE - own_E[None, :]).relu()
    return (of_row_EE + of_expert_EE).mean()


def perturbed(rows_ED: Tensor, uniform_ED: Tensor) -> Tensor:
    """Each entry times a factor from 1 - eps_i to 1 + eps_i; `uniform_ED` on [0, 1).

    eps_i is half the distance to the nearest other row by the length of the row, so that it stays
    nearer to itself; at most 1, and without gradient.
    """
    if len(rows_ED) < 2:
        return rows_ED
    with torch.no_grad():
        away_EE = (rows_ED[:, None] - rows_ED[None, :]).square().sum(-1).sqrt()
        nearest_E = away_EE.fill_diagonal_(torch.inf).amin(-1)
        length_E = torch.linalg.vector_norm(rows_ED, dim=-1)
        eps_E = (nearest_E / (2 * length_E).clamp(min=1e-12)).clamp(max=1)
        factor_ED = 1 + eps_E[:, None] * (2 * uniform_ED - 1)
    return rows_ED * factor_ED
