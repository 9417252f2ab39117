"""A way from the vectors to the logits beside the experts, as of factorisation machines.

Axes: B batch, T tasks, R rank, W width of the vector of a user or an item, D = 2 W.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Skip(nn.Module):
    """Per task b_u + b_i + <P u, v> of the user's vector u and the item's v, P of a stated rank.

    b_u and b_i are linear in u and v, and not tables: so vectors of known users and items, features
    and history included, stay all that is kept of them, and new ones have effects too.
    """

    def __init__(self, num_tasks: int, dim: int, rank: int) -> None:
        """`dim`: W, at least `rank`. Starts as 0 everywhere, and draws no random numbers, so that
        training begins as without it."""
        super().__init__()
        self.user_TRW = nn.Parameter(torch.eye(rank, dim).repeat(num_tasks, 1, 1))
        self.item_TRW = nn.Parameter(torch.zeros(num_tasks, rank, dim))
        self.alone_TD = nn.Parameter(torch.zeros(num_tasks, 2 * dim))

    def forward(self, x_BD: Tensor) -> Tensor:
        """Users beside items (B, D) -> what is added to each task (B, T)."""
        user_BW, item_BW = x_BD.chunk(2, dim=-1)
        users = F.linear(user_BW, self.user_TRW.flatten(0, 1))
        items = F.linear(item_BW, self.item_TRW.flatten(0, 1))
        together_BT = (users * items).unflatten(-1, self.user_TRW.shape[:2]).sum(-1)
        return (together_BT + F.linear(x_BD, self.alone_TD)).float()

    def of_task(self, x_BD: Tensor, task: int) -> Tensor:
        """One task's (B,); as `forward` within rounding."""
        user_BW, item_BW = x_BD.chunk(2, dim=-1)
        users, items = user_BW @ self.user_TRW[task].t(), item_BW @ self.item_TRW[task].t()
        return (users * items).sum(-1) + x_BD @ self.alone_TD[task]
