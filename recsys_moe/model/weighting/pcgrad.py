"""PCGrad: the gradient of each task loses what conflicts with that of another.

Yu et al., NeurIPS 2020, https://arxiv.org/abs/2001.06782, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys_moe.model.weighting.base import Step, Weighting, WeightingConfig, task_gram


class PCGradWeighting(Weighting):
    """Sum the projected gradients g_i - sum_j (g_i . g_j / |g_j|^2) g_j over j with g_i . g_j < 0.

    The tasks j are taken in a random order per i, each with the g_i that is left (algorithm 1).
    A projected gradient is g_i plus multiples of others, so the sum over tasks is a sum of the
    gradients with factors >= 1, which follow from the inner products alone: a step needs those,
    and minimises the sum of factor times loss. The gradients are those of all parameters.
    """

    class Config(WeightingConfig):
        name: str = "pcgrad"

    summary = "projects each gradient off those that it conflicts with (Yu et al. 2020)"
    needs_gradients = True

    def weigh(self, step: Step, model: nn.Module) -> Tensor:
        parameters = [one for one in model.parameters() if one.requires_grad]
        gram_TT = task_gram(step, parameters)
        factors = projected(gram_TT.tolist(), orders(len(gram_TT), step.seed))
        return torch.tensor(factors, dtype=gram_TT.dtype, device=gram_TT.device)


def projected(gram: Sequence[Sequence[float]], orders: Sequence[Sequence[int]]) -> list[float]:
    """Factor of each gradient in the sum of the projected ones.

    `gram`: inner products of the gradients; `orders`: for each, the order of the others.
    """
    total = [0.0] * len(gram)
    for own, order in enumerate(orders):
        factors = [float(task == own) for task in range(len(gram))]
        for other in order:
            inner = sum(a * row[other] for a, row in zip(factors, gram, strict=True))
            if inner < 0 and other != own:
                factors[other] -= inner / gram[other][other]
        total = [a + b for a, b in zip(total, factors, strict=True)]
    return total


def orders(tasks: int, seed: int) -> list[list[int]]:
    """A random order of all tasks for each."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(tasks, generator=generator).tolist() for _ in range(tasks)]
