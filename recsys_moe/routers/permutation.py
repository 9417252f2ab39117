"""The learned permutation of expert slots, "local search" of COMET+ and Top-k+.

Ibrahim et al. 2023, https://arxiv.org/abs/2306.02824. Axes: B batch, E experts.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from recsys_moe.routers.base import Routing
from recsys_moe.routers.sinkhorn import sinkhorn
from recsys_moe.routers.smooth_step import entropy

INIT = 0.05
"""The matrix starts from U(-INIT, INIT)."""


class LearnedPermutation(nn.Module):
    """Permutes the experts of a router: softly at first, then by one frozen hard permutation.

    For the first `epochs` epochs training multiplies the weights by the nearly doubly stochastic
    matrix Q = Sinkhorn(M / temperature), which anneals. Then Q is rounded to the permutation of
    the largest sum (a linear assignment), and M no longer learns. Evaluation is hard throughout.

    Differs from the paper: each router has a matrix of its own (the trees of a COMET router share
    it), where the authors share one among the tasks; and there is no Gumbel noise (factor 0).
    """

    progress: Tensor
    """(), share of the schedule done, 0..1; frozen at 1."""
    hard_EE: Tensor
    """The hard permutation as a matrix, current whenever the module is in evaluation mode."""

    def __init__(self, num_experts: int, epochs: float) -> None:
        super().__init__()
        self.epochs = epochs
        self.logits_EE = nn.Parameter(torch.empty(num_experts, num_experts).uniform_(-INIT, INIT))
        self.register_buffer("progress", torch.zeros(()))
        self.register_buffer("hard_EE", torch.eye(num_experts))

    def forward(self, routing: Routing) -> Routing:
        """`routing` with its experts permuted, plus the loss `permutation`.

        `logits_BE` becomes None: permuted probabilities have no logits.
        """
        matrix_EE = self.matrix()
        reached_BE = routing.selected_BE.float() @ (matrix_EE != 0).float()
        probs_BE = None if routing.probs_BE is None else permute(routing.probs_BE, matrix_EE)
        return replace(
            routing,
            weights_BE=permute(routing.weights_BE, matrix_EE),
            selected_BE=reached_BE != 0,
            probs_BE=probs_BE,
            logits_BE=None,
            clean_logits_BE=None,
            noise_scale_BE=None,
            losses={**routing.losses, "permutation": permutation_entropy(matrix_EE)},
        )

    def matrix(self) -> Tensor:
        """(E, E): row i says to which slots expert i goes; soft only while training learns it."""
        if not self.training:
            return self.hard_EE
        if not self.is_frozen:
            return self._soft(self.logits_EE)
        # 0 * keeps M in the graph, so that its gradient is zero and not missing.
        return self.hard_EE + 0 * self.logits_EE

    @property
    def is_soft(self) -> bool:
        return self.training and not self.is_frozen

    @property
    def is_frozen(self) -> bool:
        return bool(self.progress >= 1)

    def set_epoch(self, epochs: float) -> None:
        """Move the schedule to `epochs` of training done; at its end freeze, once and for all."""
        if not self.is_frozen:
            self.progress.fill_(min(epochs / self.epochs, 1.0))
            if self.is_frozen or not self.training:
                self._harden()

    def train(self, mode: bool = True) -> LearnedPermutation:
        if not mode and not self.is_frozen:
            self._harden()
        return super().train(mode)

    def _soft(self, logits_EE: Tensor) -> Tensor:
        """Temperature 1e-3 -> 1e-7, linear in its logarithm; rounds 20 -> 150, linear."""
        done = float(self.progress)
        temperature = 10 ** (-3 - 4 * done)
        return sinkhorn(logits_EE / temperature, int(20 + 130 * done)).exp()

    def _harden(self) -> None:
        """Round the soft matrix. In float64 on the CPU: the same permutation on every device."""
        soft_EE = self._soft(self.logits_EE.detach().double().cpu()).nan_to_num()
        from scipy.optimize import linear_sum_assignment  # half a second that few routers need

        _, column_E = linear_sum_assignment(soft_EE.numpy(), maximize=True)
        self.hard_EE.copy_(torch.eye(len(column_E))[torch.from_numpy(column_E)])


def permute(values_BE: Tensor, matrix_EE: Tensor) -> Tensor:
    """values Q with rows divided by their sums, (B, E), in full precision also under autocast.

    No sum is 0 where that of `values` is not: a round of Sinkhorn makes each row sum to 1 and then
    divides its entries by at most E.
    """
    with torch.autocast(values_BE.device.type, enabled=False):
        moved_BE = values_BE @ matrix_EE
    return moved_BE / moved_BE.sum(-1, keepdim=True)


def permutation_entropy(matrix_EE: Tensor) -> Tensor:
    """Entropy of Q plus that of Q with its rows normalised; 0 for a permutation. (E, E) -> ()."""
    rows_EE = matrix_EE / matrix_EE.sum(-1, keepdim=True)
    return entropy(matrix_EE).sum() + entropy(rows_EE).sum()
