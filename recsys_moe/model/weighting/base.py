"""What every method of weighing tasks shares: settings, one step's losses, state.

Axes: T tasks. A method learns one factor per task, by which it multiplies the task's loss, which
holds the task's training weight already. Its state is in buffers, so that checkpoints hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from recsys_moe.section import Section

AllMean = Callable[[Tensor], Tensor]
BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of Adam (Kingma and Ba, 2015, algorithm 1)."""


class WeightingConfig(Section):
    """Settings of a method; each has a `name` with the method's as default."""

    name: str


class Step(NamedTuple):
    """One training step as a method sees it."""

    losses_T: Tensor
    """With a graph: training weight times mean loss of each task. Averaged over processes it is
    the mean over all rows of the step."""
    present_T: Tensor
    """bool: tasks with a labelled row in some process and a training weight above 0. The others
    have no say in the step, and keep what was learned of them."""
    all_mean: AllMean
    """The mean of a tensor over processes, with the same bits in each."""
    seed: int
    """Of this step, the same in each process."""


class Weighting(nn.Module):
    """Learns a factor per task.

    `weigh` is called once in each training step, and `on_step_end` after the optimizer's step
    where `looks_back` is true.
    """

    Config: ClassVar[type[WeightingConfig]]
    summary: ClassVar[str]
    """One line: what the method does."""
    looks_back: ClassVar[bool] = False
    """The method wants the losses of the same rows after the step."""
    needs_gradients: ClassVar[bool] = False
    """The method computes the gradient of each task, of unscaled losses."""
    sum_T: Tensor
    count_T: Tensor

    def __init__(self, config: WeightingConfig, units: Sequence[float]) -> None:
        """`units`: factor per task that turns its loss into a negative log-likelihood."""
        super().__init__()
        self.config = config
        for name in ("sum_T", "count_T"):
            self.register_buffer(name, torch.zeros(len(units), dtype=torch.float64))

    def weigh(self, step: Step, model: nn.Module) -> Tensor:
        """Factors of this step, without gradient. (T,)"""
        raise NotImplementedError

    def on_step_end(self, losses_T: Tensor) -> None:
        """`losses_T`: those of the step after it, the means over all rows, without gradient."""

    def forward(self, step: Step, model: nn.Module) -> Tensor:
        """`weigh`, counted for `take_means`."""
        factors_T = self.weigh(step, model).detach().to(step.losses_T.dtype)
        self.sum_T += factors_T * step.present_T
        self.count_T += step.present_T
        return factors_T

    def take_means(self) -> list[float]:
        """Mean factor of each task since the last call, over the steps that had it; 0 for none.

        Waits for the device.
        """
        means: list[float] = (self.sum_T / self.count_T.clamp(min=1)).tolist()
        self.sum_T.zero_()
        self.count_T.zero_()
        return means


class OwnAdam(nn.Module):
    """Adam for a vector, of which each step may move a part."""

    first_T: Tensor
    second_T: Tensor
    steps_T: Tensor

    def __init__(self, size: int, lr: float) -> None:
        super().__init__()
        self.lr = lr
        for name in ("first_T", "second_T", "steps_T"):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))

    @torch.no_grad()
    def move(self, values_T: Tensor, gradient_T: Tensor, moved_T: Tensor) -> None:
        """Step in place where `moved_T` (bool) says so."""
        gradient_T = torch.where(moved_T, gradient_T.double(), 0.0)
        self.steps_T += moved_T
        for moment_T, beta, given_T in (
            (self.first_T, BETAS[0], gradient_T),
            (self.second_T, BETAS[1], gradient_T.square()),
        ):
            moment_T.copy_(torch.where(moved_T, moment_T.lerp(given_T, 1 - beta), moment_T))
        first_T = self.first_T / (1 - BETAS[0] ** self.steps_T)
        second_T = self.second_T / (1 - BETAS[1] ** self.steps_T)
        step_T = self.lr * first_T / (second_T.sqrt() + EPSILON)
        values_T -= torch.where(moved_T, step_T, 0.0)


def task_gram(step: Step, parameters: Sequence[nn.Parameter]) -> Tensor:
    """Inner products of the tasks' gradients over all rows of the step. (T, T) float64

    One backward pass per task; with several processes all gradients are exchanged.
    """
    losses = step.losses_T.unbind()
    rows = [
        torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        for loss in losses
    ]
    gram_TT = step.losses_T.new_zeros((len(losses), len(losses)), dtype=torch.float64)
    for parameter, of_tasks in zip(parameters, zip(*rows, strict=True), strict=True):
        if all(one is None for one in of_tasks):
            continue
        flat = [torch.zeros_like(parameter) if one is None else one for one in of_tasks]
        gradients_TN = step.all_mean(torch.stack([one.flatten() for one in flat]))
        gram_TT += gradients_TN @ gradients_TN.T
    return gram_TT
