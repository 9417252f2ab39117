"""BASE: training gives every expert the same number of examples, one expert each.

Lewis et al. 2021, https://arxiv.org/abs/2103.16716 (balanced assignment, sigmoid gate).
Axes: B batch, E experts, D input width, U unassigned examples.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recsys_moe.routers.base import Router, RouterShape, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import keep_selected, largest_k
from recsys_moe.routers.settings import NO_PROBABILITIES, RouterConfig

ROUNDS = 100
"""Rounds of the auction before what is left is assigned greedily."""
OPEN = -1
"""Expert of an example that has none."""


class BaseLayerRouter(Router):
    """w = sigmoid(x . e_a) on the one expert a; e are the experts' centroids.

    Training: a is the balanced assignment with (nearly) the largest sum of scores x . e, so a
    row's expert depends on its batch (on several devices, on its device's part). Evaluation: a is
    the best-scoring expert of the row itself. The centroids learn through the sigmoid alone.

    Differs from the paper, which returns w f_a(x) + (1 - w) x: our experts' input and output
    widths may differ, so there is no residual.
    """

    class Config(RouterConfig):
        name: str = "base"

        @property
        def idle_penalties(self) -> dict[str, str]:
            return NO_PROBABILITIES

    summary = "one expert per example, equally many examples per expert in training (BASE)"
    repeats = False  # the auction ends by values

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        self.gate = nn.Linear(shape.input_dim, shape.num_experts, bias=False)
        nn.init.orthogonal_(self.gate.weight, gain=0.1)

    @property
    def expert_rows(self) -> Tensor:
        return self.gate.weight

    @property
    def max_selected(self) -> int:
        return 1

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        scores_BE = gate_logits(self.gate, x_BD)
        if self.training:
            expert_B = balanced_assignment(scores_BE.detach())
            selected_BE = torch.zeros_like(scores_BE, dtype=torch.bool)
            selected_BE = selected_BE.scatter(1, expert_B[:, None], True)
        else:
            selected_BE = largest_k(scores_BE, 1)
        return Routing(keep_selected(scores_BE.sigmoid(), selected_BE), selected_BE)


def balanced_assignment(scores_BE: Tensor) -> Tensor:
    """Expert of each example, (B,) int64, loads differing by at most 1.

    Each expert first gets B // E examples by auction; the B % E examples that no expert took are
    then assigned greedily, at most one per expert. With B < E this is all there is. Where the
    auction ends in time and B % E = 0, the mean score is within `_bid_step` of the largest one.
    """
    scores_BE = _finite(scores_BE)
    share = len(scores_BE) // scores_BE.shape[1]
    expert_B = torch.full((len(scores_BE),), OPEN, device=scores_BE.device)
    if share:
        expert_B = _auction(scores_BE, share)
        expert_B = _greedy(scores_BE, expert_B, share)
    return _greedy(scores_BE, expert_B, share + 1)


def _finite(scores_BE: Tensor) -> Tensor:
    """Non-finite scores become the smallest finite one."""
    finite_BE = scores_BE.isfinite()
    smallest = scores_BE[finite_BE].min() if bool(finite_BE.any()) else scores_BE.new_zeros(())
    return torch.where(finite_BE, scores_BE, smallest)


def _auction(scores_BE: Tensor, share: int) -> Tensor:
    """Auction with `share` equal slots per expert (Bertsekas and Castanon 1989); (B,), some OPEN.

    In each round all examples without an expert bid for their favourite at current prices, as
    much as makes it as good as their second choice, plus a step. An expert keeps its `share`
    highest bids; once it is full its price is the lowest of them. First prices are free, as every
    slot is sold: from the mean scores a generally popular expert needs no bidding war.
    """
    num_rows, num_experts = scores_BE.shape
    price_E, bid_B = scores_BE.mean(0), scores_BE.new_zeros(num_rows)
    step = _bid_step(scores_BE - price_E)
    share_E = torch.full((num_experts,), share, device=scores_BE.device)
    expert_B = torch.full((num_rows,), OPEN, device=scores_BE.device)
    for _ in range(ROUNDS):
        open_U = (expert_B == OPEN).nonzero()[:, 0]
        if len(open_U) == num_rows - share * num_experts:
            break
        favourite_U, margin_U = _favourites(scores_BE[open_U] - price_E)
        expert_B[open_U] = favourite_U
        bid_B[open_U] = price_E[favourite_U] + margin_U + step
        expert_B = _keep_highest(bid_B, expert_B, share_E)
        price_E = _prices(price_E, bid_B, expert_B, share)
    return expert_B


def _favourites(values_UE: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the largest of each row, the first of equals, and its lead over the second; (U,)."""
    best_U1 = values_UE.argmax(1, keepdim=True)
    most_U = values_UE.gather(1, best_U1)[:, 0]
    if values_UE.shape[1] == 1:
        return best_U1[:, 0], torch.zeros_like(most_U)
    return best_U1[:, 0], most_U - values_UE.scatter(1, best_U1, -torch.inf).amax(1)


def _bid_step(values_BE: Tensor) -> float:
    """1/50 of the largest range of a row, at least 1e-4."""
    return max(float((values_BE.amax(1) - values_BE.amin(1)).max()) / 50, 1e-4)


def _prices(price_E: Tensor, bid_B: Tensor, expert_B: Tensor, share: int) -> Tensor:
    """The lowest bid at experts that have `share` examples, the old price elsewhere. (E,)."""
    held_B = expert_B != OPEN
    lowest_E = torch.full_like(price_E, torch.inf)
    lowest_E = lowest_E.scatter_reduce(0, expert_B[held_B], bid_B[held_B], "amin")
    return torch.where(_loads(expert_B, len(price_E)) == share, lowest_E, price_E)


def _greedy(scores_BE: Tensor, expert_B: Tensor, capacity: int) -> Tensor:
    """Let the examples without an expert take the best one that has room, best scores first."""
    num_experts = scores_BE.shape[1]
    while True:  # each round fills an expert or places everyone
        room_E = (capacity - _loads(expert_B, num_experts)).clamp(min=0)
        open_U = (expert_B == OPEN).nonzero()[:, 0]
        if len(open_U) == 0 or int(room_E.sum()) == 0:
            return expert_B
        open_UE = scores_BE[open_U].masked_fill(room_E == 0, -torch.inf)
        wanted_U = open_UE.argmax(1)  # the first of equals
        taken_U = _keep_highest(open_UE.amax(1), wanted_U, room_E)
        expert_B = expert_B.index_copy(0, open_U, taken_U)


def _keep_highest(bid_B: Tensor, expert_B: Tensor, capacity_E: Tensor) -> Tensor:
    """`expert_B` with only the `capacity_E` highest bids of each expert; the others are OPEN."""
    order_B = bid_B.argsort(descending=True, stable=True)
    order_B = order_B[expert_B[order_B].argsort(stable=True)]
    sorted_B = expert_B[order_B]
    loads_E = _loads(expert_B, len(capacity_E))
    start_E = (expert_B == OPEN).sum() + loads_E.cumsum(0) - loads_E
    rank_B = torch.arange(len(order_B), device=bid_B.device) - start_E[sorted_B]
    keeps_B = (sorted_B != OPEN) & (rank_B < capacity_E[sorted_B])
    return torch.full_like(expert_B, OPEN).scatter(0, order_B, torch.where(keeps_B, sorted_B, OPEN))


def _loads(expert_B: Tensor, num_experts: int) -> Tensor:
    """Examples of each expert, (E,)."""
    return torch.bincount(expert_B + 1, minlength=num_experts + 1)[1:]
