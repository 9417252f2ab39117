"""The interface of routers: a router selects experts for each example, and their weights.

Axes: B batch, T tasks, E experts, D input width, K experts kept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from recsys_moe.errors import ConfigError
from recsys_moe.routers.precision import BuiltInFloat32, not_below_float32
from recsys_moe.routers.settings import RouterConfig
from recsys_moe.routers.stream import RandomStream

AllSum = Callable[[Tensor], Tensor]
"""Adds up a tensor over the processes of a run; a single process gets its own back."""


OLD_HOOKS = {"settle": "on_step_end", "advance": "set_epoch", "start": "setup"}
"""Names of hooks in version 0.1; nothing would call them, so a router that defines one fails."""

FIXED = "fixed"
"""`Router.sparsity` where every example of a task visits the same experts."""


@dataclass(frozen=True)
class RouterShape:
    """The sizes a router is built for."""

    input_dim: int
    num_experts: int
    num_users: int = 0
    """Users known to training; index num_users is the OOV user."""
    task: int = 0
    """Which task the router decides for, 0..num_tasks - 1."""
    num_tasks: int = 1


@dataclass
class Routing:
    """The decision for a batch. The layer computes it, penalties and reports read it."""

    weights_BE: Tensor
    """float32, >= 0, exactly 0 where an expert is not selected."""
    selected_BE: Tensor
    """bool. A selected expert may have weight 0, so this is not `weights_BE > 0`. A row whose
    probabilities are NaN selects experts with weight NaN: computed, they show in the loss."""
    probs_BE: Tensor | None = None
    """Dense probabilities behind the decision, rows sum to 1; None where a router has none."""
    logits_BE: Tensor | None = None
    """What `probs_BE` is the softmax of; None where a router has no such logits."""
    clean_logits_BE: Tensor | None = None
    """`logits_BE` before the router's noise was added; None where there was none."""
    noise_scale_BE: Tensor | None = None
    """Learned standard deviation of that noise; None where it is not learned."""
    counts_BE: Tensor | None = None
    """Integers, how often each expert was drawn; None where it is once if selected."""
    default_weights_BE: Tensor | None = None
    """>= 0, 0 where an expert is selected: weights of running means of outputs; None without."""
    shared_BE: Tensor | None = None
    """bool, the experts among which all tasks chose; None where each chose among all."""
    losses: dict[str, Tensor] = field(default_factory=dict)
    """Named unweighted losses of the router itself; the training module weighs them."""

    def rows(self, expert: int) -> Tensor:
        """Indices, ascending, of the rows that selected `expert`. (R,)"""
        return self.selected_BE[:, expert].nonzero()[:, 0]


class Router(nn.Module, metaclass=BuiltInFloat32):
    """Interface of all routers. Subclasses are final: nobody derives from a concrete router.

    Promises, all tested: weights are non-negative, exactly 0 off the selection, and those of a row
    sum to at most `max_sum`; at most `max_selected` experts are selected, and none where a router
    says so; evaluation is deterministic; rows do not influence each other unless
    `batch_dependent`; all arithmetic is float32 even under autocast; `half()`, `bfloat16()` and a
    default dtype of 16 bits leave parameters and buffers in float32: 16 bits would round away
    small steps of a gate.
    """

    Config: ClassVar[type[RouterConfig]]
    summary: ClassVar[str]
    """One line for `recsys-moe routers`."""
    sparsity: ClassVar[str] = "dense"
    """Experts per example in words, where `max_selected` is all of them though `kept` is fewer;
    FIXED where they are the same for every example of a task."""
    batch_dependent: ClassVar[bool] = False
    """True when a row's routing at inference depends on the other rows of its batch."""
    passes: ClassVar[int] = 1
    """Forward passes per training step. With 2 the module adds a consistency loss between them."""
    per_user: ClassVar[tuple[str, ...]] = ()
    """Buffers with an entry per user and one for the OOV user; a warm start on other data moves
    each entry with its user."""

    def __init__(self, config: Any, shape: RouterShape) -> None:
        super().__init__()
        for old, new in OLD_HOOKS.items():
            if hasattr(self, old):
                raise ConfigError(
                    f"router hook {type(self).__name__}.{old} must be named {new}; rename it"
                )
        config.check(shape.num_experts)
        config.check_tasks(shape.num_experts, shape.num_tasks)
        self.config = config
        self.shape = shape
        self.stream = RandomStream()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Behind `to`, `half`, `cuda` and the like of torch."""
        return super()._apply(lambda tensor: not_below_float32(fn, tensor), recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        for name, own in self.state_dict().items():
            saved = state_dict.get(prefix + name, own)
            if saved.shape != own.shape:
                k = getattr(self.config, "k", "none")
                rest[-1].append(
                    f"router {self.config.name} must have the sizes with which {prefix}{name} was "
                    f"saved, {tuple(saved.shape)}, got {tuple(own.shape)} of k={k} and {self.shape}"
                )

    @abstractmethod
    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        """Route a batch.

        `x_BD`: (B, input_dim) of 16 or 32 bits, after `double()` of 64. `user_B`: (B,) dense
        indices of the users, which few routers read; one that needs them raises ValueError without.
        """

    def setup(self, user_counts: Tensor) -> None:
        """Called once before training. `user_counts`: training rows of each user, (num_users,)."""

    def set_epoch(self, epochs: float) -> None:
        """Called before every training step. `epochs`: training done so far, such as 2.25."""

    def on_step_end(self, all_sum: AllSum) -> None:
        """Called once in every training step, after its forward passes and before backward.

        Update here, and not in `forward`, what the router learns from counts: a step may have two
        passes, and checkpoints are written between steps. `all_sum` adds up a tensor over the
        processes, the same bits in each; every process must call it equally often. Do not change
        in place what backward needs.
        """

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weight of each of the router's own `Routing.losses` in the training loss."""
        return {}

    @property
    def consistency(self) -> float:
        """Weight of the disagreement between the two passes of a step; unused with one pass."""
        return float(getattr(self.config, "consistency", 0.0))

    @property
    def mean_momentum(self) -> float | None:
        """Share of the expert output means that a step keeps; None: the layer keeps no means.

        A router that returns `Routing.default_weights_BE` must define it.
        """
        return None

    @property
    def repeats(self) -> bool:
        """Does every training step do the same, without a look at values? Then it can be recorded
        as a CUDA graph."""
        kind = type(self)
        has_hooks = (kind.set_epoch, kind.on_step_end) != (Router.set_epoch, Router.on_step_end)
        return self.passes == 1 and not has_hooks

    @property
    def max_selected(self) -> int:
        """Most experts selected per example in the current mode (training or evaluation)."""
        return self.shape.num_experts

    @property
    def max_sum(self) -> float:
        """Upper bound of the sum of the weights of an example, up to rounding; inf without one."""
        return 1.0

    @property
    def expert_rows(self) -> Tensor | None:
        """Row e of a linear gate scores expert e, (E, D); None without such a gate."""
        return None

    @property
    def kept(self) -> int:
        """The k of penalties that exclude the k largest probabilities."""
        return int(getattr(self.config, "k", self.shape.num_experts))


class GatedRouter(Router):
    """A router that decides by the logits of a linear gate; abstract like Router.

    Glorot-uniform kernel and zero bias, as Keras initialises them. PyTorch's default
    (Kaiming-uniform kernel, random bias) starts from other routers than the experiments of the
    papers did.
    """

    def __init__(self, config: Any, shape: RouterShape) -> None:
        super().__init__(config, shape)
        self.gate = nn.Linear(shape.input_dim, shape.num_experts)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    @property
    def expert_rows(self) -> Tensor | None:
        return self.gate.weight


class SparseGatedRouter(GatedRouter):
    """A gated router that selects at most `config.k` experts per example; abstract."""

    @property
    def max_selected(self) -> int:
        return int(self.config.k)
