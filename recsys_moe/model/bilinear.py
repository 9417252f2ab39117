"""The bilinear term: user vector times item vector, added to the logits of the experts.

Axes: B batch, T tasks, R rank, W width of the vector of a user or an item, D = 2 W.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BilinearTerm(nn.Module):
    """Per task: a product of the user vector u and the item vector v, plus linear terms of each.

    The linear terms are functions of u and v and not tables per id. So a cold-start user or item
    has them too, and the vector stays all that a model stores of a known one.
    """

    def __init__(self, num_tasks: int, dim: int) -> None:
        """`dim`: W. Draws no random numbers."""
        super().__init__()
        self.alone_TD = nn.Parameter(torch.zeros(num_tasks, 2 * dim))

    def together(self, user_BW: Tensor, item_BW: Tensor) -> Tensor:
        """(B, T)."""
        raise NotImplementedError

    def forward(self, x_BD: Tensor) -> Tensor:
        """User and item vectors, concatenated (B, D) -> what is added to each task (B, T)."""
        return self.together(*x_BD.chunk(2, dim=-1)) + F.linear(x_BD, self.alone_TD)

    def of_task(self, x_BD: Tensor, task: int) -> Tensor:
        """One task's (B,); as `forward` within rounding."""
        raise NotImplementedError

    def factors(self, user_BW: Tensor, item_NW: Tensor, task: int) -> tuple[Tensor, Tensor]:
        """(B, R + 1) and (N, R + 1), whose product is one task's term of all users and items, less
        what is of the user alone."""
        raise NotImplementedError

    def _with_alone(
        self, user_BR: Tensor, item_NR: Tensor, item_NW: Tensor, task: int
    ) -> tuple[Tensor, Tensor]:
        """Factors with the linear term of the items."""
        alone_N = item_NW @ self.alone_TD[task, item_NW.shape[1] :]
        ones_B = user_BR.new_ones(len(user_BR))
        return torch.column_stack([user_BR, ones_B]), torch.column_stack([item_NR, alone_N])


class ProjectedTerm(BilinearTerm):
    """<P u, v> with a learned P of rank R for each task.

    The term starts at 0, so training starts as it does without the term.
    """

    def __init__(self, num_tasks: int, dim: int, rank: int) -> None:
        """`rank`: R, at most W."""
        super().__init__(num_tasks, dim)
        self.user_TRW = nn.Parameter(torch.eye(rank, dim).repeat(num_tasks, 1, 1))
        self.item_TRW = nn.Parameter(torch.zeros(num_tasks, rank, dim))

    def together(self, user_BW: Tensor, item_BW: Tensor) -> Tensor:
        users = F.linear(user_BW, self.user_TRW.flatten(0, 1))
        items = F.linear(item_BW, self.item_TRW.flatten(0, 1))
        return (users * items).unflatten(-1, self.user_TRW.shape[:2]).sum(-1)

    def of_task(self, x_BD: Tensor, task: int) -> Tensor:
        user_BW, item_BW = x_BD.chunk(2, dim=-1)
        users, items = user_BW @ self.user_TRW[task].t(), item_BW @ self.item_TRW[task].t()
        return (users * items).sum(-1) + x_BD @ self.alone_TD[task]

    def factors(self, user_BW: Tensor, item_NW: Tensor, task: int) -> tuple[Tensor, Tensor]:
        users, items = user_BW @ self.user_TRW[task].t(), item_NW @ self.item_TRW[task].t()
        return self._with_alone(users, items, item_NW, task)


class DiagonalTerm(BilinearTerm):
    """sum_r tanh(s_r) u_r v_r over the first R dimensions, with own s for each task.

    tanh bounds the scale by 1, so weight decay on the vectors bounds the product, as in a matrix
    factorisation. A learned P weakens weight decay: the optimiser shrinks the large tables and
    enlarges the small P.
    """

    START = 2.0
    """First value of s; tanh is 0.96. The first vectors are small, and so is their product."""

    def __init__(self, num_tasks: int, dim: int, rank: int) -> None:
        """`rank`: R, at most W."""
        super().__init__(num_tasks, dim)
        self.scale_TR = nn.Parameter(torch.full((num_tasks, rank), self.START))

    def together(self, user_BW: Tensor, item_BW: Tensor) -> Tensor:
        return F.linear(self._products(user_BW, item_BW), self.scale_TR.tanh())

    def of_task(self, x_BD: Tensor, task: int) -> Tensor:
        products_BR = self._products(*x_BD.chunk(2, dim=-1))
        return products_BR @ self.scale_TR[task].tanh() + x_BD @ self.alone_TD[task]

    def factors(self, user_BW: Tensor, item_NW: Tensor, task: int) -> tuple[Tensor, Tensor]:
        scale_R = self.scale_TR[task].tanh()
        users, items = (one[:, : len(scale_R)] for one in (user_BW, item_NW))
        return self._with_alone(users * scale_R, items, item_NW, task)

    def _products(self, user_BW: Tensor, item_BW: Tensor) -> Tensor:
        rank = self.scale_TR.shape[1]
        return user_BW[:, :rank] * item_BW[:, :rank]
