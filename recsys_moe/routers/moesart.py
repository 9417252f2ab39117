"""MOESART: sample k experts per example, adjust their logits, train exactly k-sparse.

"MOESART: An Effective Sampling-based Router for Sparse Mixture of Experts" (anonymous, under
double-blind review). Equation and algorithm numbers are the paper's and its supplement's (S2).
Axes: B batch, E experts, D input width. `counts_BE` is the paper's r, `adjusted` its z.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Routing
from recsys_moe.routers.joint import JointConfig, JointRouter, Shared, within
from recsys_moe.routers.selection import largest_k, smallest_k, softmax_over

Strategy = Literal["i", "ii", "iii", "3"]


class MoesartRouter(JointRouter):
    """Sampling router: the dense softmax decides how often an expert is drawn.

    Training draws k experts per example from g = softmax((Ax + b) / temperature), picks one
    adjusted expert uniformly among them and weighs the drawn set by eq. (3). Evaluation is
    deterministic: the k most probable experts, each with weight 1/k (section 3.1.1).
    """

    class Config(JointConfig):
        name: str = "moesart"
        k: int = 2
        """Experts drawn per example, 2..num_experts. With k = 1 the router has no gradient."""
        strategy: Strategy = "3"
        """How the drawn logits are adjusted: eq. (3), or the strategies (i), (ii), (iii)."""
        replacement: bool = False
        """Draw with replacement; an expert drawn twice is visited once, with a larger weight."""
        temperature: float = Field(default=0.2, gt=0, allow_inf_nan=False)
        """Divides the logits, so it changes the draws as well as the weights; > 0. With the paper's
        1 experts take two to three times the epochs to differ."""
        inference: Literal["sparse", "dense", "sampled"] = "sparse"
        """At evaluation: top-k with weights 1/k, all experts with weights g, or a seeded draw."""
        sampler: Literal["gumbel", "sequential"] = "gumbel"
        """`gumbel` is fast, `sequential` is Algorithm 1 to the letter; both have the same law."""

        def check(self, num_experts: int) -> None:
            if num_experts < 2:
                raise ValueError(
                    f"model.num_experts must be at least 2 for moesart, got {num_experts}; raise "
                    "it or use the softmax router"
                )
            super().check(num_experts)
            if self.k < 2:
                raise ValueError(
                    "model.router.k must be at least 2 for moesart, got 1: a single sampled "
                    "expert gives its router no gradient; use k=2 or the topk router"
                )

        @property
        def remarks(self) -> list[str]:
            if self.strategy != "iii":
                return []
            return [
                "model.router.strategy is iii: the tasks give the router no gradient, and it keeps "
                "its initial probabilities; use strategy=3, the method"
            ]

    summary = "samples k experts per example by the dense softmax, corrects their weights (MOESART)"

    @property
    def max_selected(self) -> int:
        dense = not self.training and self.config.inference == "dense"
        return self.shape.num_experts if dense else self.config.k

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        return self.among(self.logits(x_BD), None)

    @property
    def draws(self) -> bool:
        return self.training or bool(self.config.inference == "sampled")

    def among(self, logits_BE: Tensor, shared: Shared | None) -> Routing:
        log_probs_BE = logits_BE.log_softmax(-1)
        probs_BE = log_probs_BE.exp()
        if self.draws:
            from_BE = probs_BE if shared is None else within(log_probs_BE, shared).softmax(-1)
            return self._sampled(from_BE.detach(), log_probs_BE, probs_BE, logits_BE)
        if self.config.inference == "dense":
            weights_BE, selected_BE = probs_BE, torch.ones_like(probs_BE, dtype=torch.bool)
        else:
            selected_BE = largest_k(within(logits_BE, shared), self.config.k)
            weights_BE = selected_BE.to(probs_BE.dtype) / self.config.k
        return Routing(weights_BE, selected_BE, probs_BE, logits_BE)

    def _sampled(
        self, from_BE: Tensor, log_probs_BE: Tensor, probs_BE: Tensor, logits_BE: Tensor
    ) -> Routing:
        """By a fresh draw with the probabilities `from_BE`."""
        config = self.config
        if config.sampler == "gumbel" and not config.replacement:
            noise_BE = self._uniform(probs_BE.shape, probs_BE)
            drawn = sample_gumbel(from_BE, noise_BE, config.k)
            adjusted_B = (self._uniform((len(probs_BE),), probs_BE) * drawn[1].sum(-1)).long()
            pair = distinct_weights(log_probs_BE, *drawn, adjusted_B, strategy=config.strategy)
            return Routing(*pair, probs_BE, logits_BE)
        with torch.no_grad():
            uniforms_KB = self._uniform((config.k, len(probs_BE)), probs_BE)
            counts_BE = sample_sequential(from_BE, uniforms_KB, config.replacement)
            noise_BE = self._uniform(probs_BE.shape, probs_BE)
            adjusted_B = noise_BE.masked_fill(counts_BE == 0, -1.0).argmax(-1)
        weights_BE = sampled_weights(
            log_probs_BE, counts_BE, adjusted_B, k=config.k, strategy=config.strategy
        )
        draws_BE = counts_BE if config.replacement else None
        return Routing(weights_BE, counts_BE > 0, probs_BE, logits_BE, counts_BE=draws_BE)

    def _uniform(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        generator = self.stream.generator(like.device)
        return torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)


def distinct_weights(
    log_probs_BE: Tensor,
    drawn_BK: Tensor,
    possible_BK: Tensor,
    adjusted_B: Tensor,
    *,
    strategy: Strategy,
) -> tuple[Tensor, Tensor]:
    """`sampled_weights` of distinct draws and their mask (B, E), computed on (B, K) only.

    `drawn_BK`, `possible_BK`: from `sample_gumbel`; `adjusted_B`: column of the one expert whose
    logit eq. (3) leaves uncorrected. Nothing here is drawn twice, so r = 1 and log r = 0.
    """
    drawn_log_probs_BK = log_probs_BE.gather(-1, drawn_BK)
    corrected_BK = _corrected(drawn_log_probs_BK, adjusted_B, drawn_BK.shape[-1], strategy)
    weights_BK = softmax_over(corrected_BK, possible_BK)
    weights_BE = torch.zeros_like(log_probs_BE).scatter_(-1, drawn_BK, weights_BK)
    selected_BE = torch.zeros_like(log_probs_BE, dtype=torch.bool)
    return weights_BE, selected_BE.scatter_(-1, drawn_BK, possible_BK)


def sampled_weights(
    log_probs_BE: Tensor, counts_BE: Tensor, adjusted_B: Tensor, *, k: int, strategy: Strategy
) -> Tensor:
    """Weights over the drawn experts, (B, E), rows sum to 1, exactly 0 where not drawn.

    `counts_BE`: how often each expert was drawn; `adjusted_B`: index of the one expert whose
    logit eq. (3) leaves uncorrected (the others are corrected by their sampling probability).

    The logits o and log g differ by a constant per row, so the correction o_i - log((k-1) g_i)
    is -log(k-1) up to that constant: no log of a tiny g_i is ever taken, and its gradient
    is exactly what differentiating g_i in eq. (3) gives.
    """
    selected_BE = counts_BE > 0
    corrected_BE = _corrected(log_probs_BE, adjusted_B, k, strategy)
    if strategy != "i":
        corrected_BE = corrected_BE + counts_BE.clamp(min=1).to(log_probs_BE.dtype).log()
    return softmax_over(corrected_BE, selected_BE)


def _corrected(log_probs_BE: Tensor, adjusted_B: Tensor, k: int, strategy: Strategy) -> Tensor:
    """Logits of the drawn experts less their correction, without log r."""
    if strategy in ("i", "ii"):
        return log_probs_BE
    if strategy == "iii":
        # o_i - log(k g_i): the router drops out. 0 * keeps it in the graph, so that its gradient is
        # zero and not missing.
        return 0 * log_probs_BE
    is_adjusted_BE = torch.zeros_like(log_probs_BE, dtype=torch.bool)
    is_adjusted_BE.scatter_(-1, adjusted_B[:, None], True)
    return torch.where(is_adjusted_BE, log_probs_BE, -math.log(k - 1))


def sample_gumbel(probs_BE: Tensor, noise_BE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Draw k distinct experts per row by the Gumbel-top-k trick.

    Same law as `sample_sequential` without replacement. `noise_BE` is uniform on [0, 1); the keys
    p / -log(u) are in the order of log p + Gumbel noise, at half the logarithms. Returns indices
    (B, K) and which of them are possible: experts whose probability underflows to 0 are never
    drawn, a row with fewer than k others has them last and marked False. Of a row of NaN all are
    possible, see `Routing`.
    """
    tiny = torch.finfo(noise_BE.dtype).tiny  # u = 0 would make the key 0 whatever the probability
    negative_keys_BE = probs_BE / noise_BE.clamp(min=tiny).log_()
    keys_BK, drawn_BK = smallest_k(negative_keys_BE, k)
    return drawn_BK, keys_BK != 0


def sample_sequential(probs_BE: Tensor, uniforms_KB: Tensor, replacement: bool) -> Tensor:
    """Algorithm 1 of the supplement: k draws by inverse CDF; counts (B, E).

    `uniforms_KB`: one uniform number on [0, 1) per draw and row. The first index with
    u < cumulative sum is taken. Unlike the algorithm as printed, an exhausted row is not divided
    by its zero sum, and a u above the rounded last cumulative value takes the last possible expert.
    """
    remaining_BE = probs_BE.clone()
    counts_BE = torch.zeros_like(probs_BE, dtype=torch.long)
    for uniform_B in uniforms_KB:
        alive_B = remaining_BE.sum(-1) != 0  # also of NaN, see `Routing`
        index_B1 = _first_above(remaining_BE, uniform_B)
        counts_BE.scatter_add_(-1, index_B1, alive_B.long()[:, None])
        if not replacement:
            remaining_BE.scatter_(-1, index_B1, 0.0)
            total_B1 = remaining_BE.sum(-1, keepdim=True)
            remaining_BE = remaining_BE / torch.where(total_B1 > 0, total_B1, 1.0)
    return counts_BE


def _first_above(mass_BE: Tensor, uniform_B: Tensor) -> Tensor:
    """Index (B, 1) of the first expert whose cumulative mass exceeds u, else the last with mass."""
    positions_E = torch.arange(mass_BE.shape[-1], device=mass_BE.device)
    last_B1 = (positions_E * (mass_BE > 0)).amax(-1, keepdim=True)
    first_B1 = torch.searchsorted(mass_BE.cumsum(-1), uniform_B[:, None], right=True)
    return first_B1.minimum(last_B1)
