"""Multi-task baselines as routers: which experts a task may use is fixed, by a mask per task.

`shared_bottom` (Caruana 1997, https://doi.org/10.1023/A:1007379606734), `single_task`, and `cgc`,
the gate of PLE (Tang et al. 2020, https://doi.org/10.1145/3383313.3412236, one level).
The experts stand in this order: those that all tasks share, then a block for each task.
Axes: B batch, E experts, D input width, M experts of the task's mask.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from recsys_moe.errors import ConfigError
from recsys_moe.routers.base import FIXED, Router, RouterShape, Routing
from recsys_moe.routers.precision import full_precision, gate_logits
from recsys_moe.routers.selection import keep_selected
from recsys_moe.routers.settings import NO_ROWS, FixedConfig, RouterConfig


def task_mask(shape: RouterShape, shared: int) -> Tensor:
    """bool (E,): the `shared` first experts and the block of the task.

    The other experts are divided in order; where that leaves some over, the first tasks have one
    more.
    """
    mine = torch.arange(shape.num_experts - shared).tensor_split(shape.num_tasks)[shape.task]
    mask_E = torch.arange(shape.num_experts) < shared
    return mask_E.index_fill_(0, mine + shared, True)


class SharedBottomRouter(Router):
    """All tasks use the same experts, the first `shared`, with the same weight: w_i = 1 / shared.

    One expert is the shared bottom of Caruana 1997, one hidden layer that all tasks read; more are
    the mean of as many such layers. Other experts are never computed. No parameters.
    """

    class Config(FixedConfig):
        name: str = "shared_bottom"
        shared: int = Field(default=1, ge=1)
        """Experts that all tasks use, the first ones, 1..num_experts; their mean counts."""

        def check(self, num_experts: int) -> None:
            if self.shared > num_experts:
                raise ValueError(
                    f"model.router.shared must be in 1..model.num_experts={num_experts}, got "
                    f"{self.shared}; lower it or raise model.num_experts"
                )

    summary = "the same experts for all tasks and examples (shared bottom)"
    sparsity = FIXED
    mask_E: Tensor

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        mask_E = torch.arange(shape.num_experts) < config.shared
        self.register_buffer("mask_E", mask_E, persistent=False)

    @property
    def max_selected(self) -> int:
        return int(self.config.shared)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        return _equally(x_BD, self.mask_E, self.max_selected)


class SingleTaskRouter(Router):
    """Each task has experts of its own and shares none: w_i = 1 / (experts of the task).

    The experts are divided among the tasks in order, see `task_mask`. What the tasks still share
    are the embeddings. No parameters; `cgc` with `shared=0` has a gate in each block.
    """

    class Config(FixedConfig):
        name: str = "single_task"

        def check_tasks(self, num_experts: int, num_tasks: int) -> None:
            if num_experts < num_tasks:
                raise ConfigError(
                    f"model.num_experts must be at least the number of tasks, {num_tasks}, for "
                    f"single_task, got {num_experts}; raise it or choose shared_bottom"
                )

    summary = "experts of its own for each task, none shared"
    sparsity = FIXED
    mask_E: Tensor

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        mask_E = task_mask(shape, 0)
        self.register_buffer("mask_E", mask_E, persistent=False)
        self._num_own = int(mask_E.sum())

    @property
    def max_selected(self) -> int:
        return self._num_own

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        return _equally(x_BD, self.mask_E, self.max_selected)


class CGCRouter(Router):
    """A softmax gate over the task's own experts and the shared ones: w = softmax(Ax + b) on these.

    Customized gate control, one level of PLE. The published gate has no bias; ours has one, as all
    linear gates here.
    """

    class Config(RouterConfig):
        name: str = "cgc"
        shared: int | None = Field(default=None, ge=0)
        """Experts that all tasks use, the first ones; the rest is divided among the tasks. `null`:
        each task has num_experts // (tasks + 1) of its own and the rest is shared."""

        def check(self, num_experts: int) -> None:
            if self.shared is not None and self.shared >= num_experts:
                raise ValueError(
                    f"model.router.shared must be below model.num_experts={num_experts}, got "
                    f"{self.shared}; lower it or raise model.num_experts"
                )

        def check_tasks(self, num_experts: int, num_tasks: int) -> None:
            if self.shared is None and num_experts <= num_tasks:
                raise ConfigError(
                    f"model.num_experts must be above the number of tasks, {num_tasks}, for cgc "
                    f"with shared experts, got {num_experts}; raise it or set model.router.shared=0"
                )
            if self.num_shared(num_experts, num_tasks) + num_tasks > num_experts:
                raise ConfigError(
                    f"model.router.shared must leave an expert for each of {num_tasks} tasks of "
                    f"model.num_experts={num_experts}, got {self.shared}; lower it or raise "
                    "model.num_experts"
                )

        def num_shared(self, num_experts: int, num_tasks: int) -> int:
            if self.shared is not None:
                return self.shared
            return num_experts - num_tasks * (num_experts // (num_tasks + 1))

        @property
        def idle_penalties(self) -> dict[str, str]:
            return {"trimmed_lasso": "keeps all experts of a task", **NO_ROWS}

    summary = "softmax over the task's own and the shared experts (CGC, PLE's gate)"
    sparsity = FIXED
    mask_E: Tensor
    place_E: Tensor

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        mask_E = task_mask(shape, config.num_shared(shape.num_experts, shape.num_tasks))
        self.register_buffer("mask_E", mask_E, persistent=False)
        # The gate's logit of each expert of the mask; any other takes one too, to be masked.
        place_E = (mask_E.cumsum(0) - 1).clamp(min=0)
        self.register_buffer("place_E", place_E, persistent=False)
        self.gate = nn.Linear(shape.input_dim, int(mask_E.sum()))
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    @property
    def max_selected(self) -> int:
        return self.gate.out_features

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BM = gate_logits(self.gate, x_BD)
        logits_BE = logits_BM.index_select(1, self.place_E).masked_fill(~self.mask_E, -torch.inf)
        probs_BE = logits_BE.softmax(-1)
        selected_BE = self.mask_E.expand(x_BD.shape[0], -1)  # len() would fix the batch at export
        return Routing(keep_selected(probs_BE, selected_BE), selected_BE, probs_BE, logits_BE)


def _equally(x_BD: Tensor, mask_E: Tensor, count: int) -> Routing:
    """Weight 1 / count on the mask, for every row."""
    selected_BE = mask_E.expand(x_BD.shape[0], -1)  # len() would fix the batch at export
    return Routing(selected_BE.to(full_precision(x_BD).dtype) / count, selected_BE)
