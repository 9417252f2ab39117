"""The mixture-of-experts layer: one router per task over a shared pool of experts.

Axes: B batch, T tasks, E experts, D input width, H expert width. Experts that are modules of any
kind take (B, ...) and give (B, ...): D is then what lies in a row, H the shape of an output's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from recsys_moe.errors import ConfigError
from recsys_moe.model.coupling import COUPLING, coupling_of
from recsys_moe.model.dispatch import dense_experts, sparse_experts
from recsys_moe.model.experts import Experts
from recsys_moe.model.modules import dense_modules, sparse_modules
from recsys_moe.model.moe_checks import check_routing, check_shapes
from recsys_moe.model.output_means import ExpertOutputMeans, output_means_for
from recsys_moe.model.penalties import DISAGREEMENT, check_names, disagreement_of, penalty
from recsys_moe.model.static_dispatch import static_experts
from recsys_moe.routers import ROUTERS, Router, Routing
from recsys_moe.routers.base import AllSum
from recsys_moe.routers.joint import check_alike, most_selected, route
from recsys_moe.routers.replay import replayed
from recsys_moe.seeds import stream_seed

DENSE_FROM = 0.85
"""Share of chosen pairs from which one batched matmul computes all (benchmarks/experts.py)."""
Dispatch = Literal["auto", "sparse", "static", "dense"]


def _alone(values: Tensor) -> Tensor:
    """The sum over the processes where there is but one."""
    return values


class MoE(nn.Module):
    """x -> one mixture of expert outputs per task, and the routing of each task.

    `experts` is one `Experts`, or a list of modules of any kind, such as CNNs, which take rows of
    `x` as they are; routers see them flattened.

    An expert is evaluated once per example even when several tasks chose it, so its dropout mask
    is shared by the tasks. `dispatch="sparse"` evaluates the
    chosen pairs only; `dense` evaluates all experts and has static shapes (for export); `auto` is
    sparse when the routers are. `static` evaluates as many pairs as the routers may choose at most,
    in shapes that do not depend on the choice (experimental; for recording on a GPU), or all where
    that is nearly as many. Inside transforms of `torch.func` all experts are evaluated.

    Random numbers: every router, and the dropout, draws from a stream of its own. They follow from
    `seed`, or without one from `torch.manual_seed`. Under `torch.utils.checkpoint` the second run
    draws what the first drew. `half()` and `bfloat16()` leave the routers in float32.
    """

    def __init__(
        self,
        experts: Experts | Sequence[nn.Module],
        routers: Sequence[Router],
        dispatch: Dispatch = "auto",
        *,
        seed: int | None = None,
    ) -> None:
        """`routers`: one per task, built for the number of experts.

        Routers with expert output means need `Experts`. Raises ValueError otherwise.
        """
        super().__init__()
        if dispatch not in get_args(Dispatch):
            raise ValueError(f"dispatch must be one of {get_args(Dispatch)}, got {dispatch!r}")
        check_shapes(experts, routers)
        check_alike(routers)
        self.experts: Any = experts if isinstance(experts, Experts) else nn.ModuleList(experts)
        self.stacked = isinstance(experts, Experts)
        self.routers = nn.ModuleList(routers)
        self.dispatch = dispatch
        self.output_means = _defaults(self.experts, routers)
        if seed is not None:
            self.reseed(seed)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> tuple[Tensor, list[Routing]]:
        """(B, D) -> mixtures (B, T, H) and the routing of each task; for modules (B, ...).

        `user_B`: (B,) dense indices of the users, for routers that read them (`hash`).
        """
        self._check_replay()
        flat_BD = x_BD if x_BD.dim() == 2 else x_BD.flatten(1)
        weights_BTE, selected_BTE, routings = self.route(flat_BD, user_B)
        if not self.stacked:
            if self._is_sparse(selected_BTE):
                return sparse_modules(x_BD, weights_BTE, selected_BTE, self.experts), routings
            return dense_modules(x_BD, weights_BTE, self.experts), routings
        means, scale = self.output_means, self.experts.dropout.scale
        counted = means if self.training else None
        if self._is_static(selected_BTE):
            most = most_selected(self.routers)
            mixed_BTH = static_experts(x_BD, weights_BTE, selected_BTE, self.experts, most)
        elif self._is_sparse(selected_BTE):
            on_outputs = None if counted is None else partial(counted.add_pairs, scale)
            mixed_BTH = sparse_experts(
                x_BD, weights_BTE, selected_BTE, self.experts, on_outputs=on_outputs
            )
        else:
            of_all = None if counted is None else partial(counted.add_dense, scale, selected_BTE)
            mixed_BTH = dense_experts(x_BD, weights_BTE, self.experts, on_outputs=of_all)
        if means is not None:
            mixed_BTH = means(mixed_BTH, routings)
        return mixed_BTH, routings

    def auxiliary_loss(self, routings: Sequence[Routing], **weights: float) -> Tensor:
        """Penalties and router losses to add to a training loss, summed over the tasks. ().

        `weights`: by name of a penalty of `recsys_moe.model.penalties`, e.g.
        `trimmed_lasso=0.1, switch=0.01`, or `coupling`. Losses of the routers themselves (such as
        the entropy of a learned permutation) are added with the weights of their settings. Without
        rows it is 0.
        Raises ConfigError for an unknown penalty, or one that a router does not support.
        """
        check_names(weights)
        active = {name: weight for name, weight in weights.items() if weight}
        coupling = active.pop(COUPLING, 0.0)
        total: Tensor | float = 0.0
        if apart := active.pop(DISAGREEMENT, 0.0):
            total = apart * disagreement_of(routings, apart)
        for router, routing in zip(self.routers, routings, strict=True):
            router = cast(Router, router)
            if active:
                total = total + penalty(active, routing, router.kept)
            if coupling:
                total = total + coupling * coupling_of(router, self.experts, coupling)
            for name, weight in router.loss_weights.items():
                total = total + weight * routing.losses[name]
        weights_BE = routings[0].weights_BE
        if not len(weights_BE):  # a mean over no rows is NaN
            return _sum_of_nothing(routings)
        return total if isinstance(total, Tensor) else weights_BE.new_full((), total)

    def set_epoch(self, epochs: float) -> None:
        """Call before each training step with the epochs of training done so far.

        Routers with a schedule (a learned permutation) follow it; the others ignore it.
        """
        for router in self.routers:
            cast(Router, router).set_epoch(epochs)

    def on_step_end(self, all_sum: AllSum = _alone) -> None:
        """Call once in each training step, after its forward passes.

        Routers update what they learn from counts (loads), and expert output means move.
        `all_sum`: adds up a tensor over the processes, where there are several.
        """
        for router in self.routers:
            cast(Router, router).on_step_end(all_sum)
        if self.output_means is not None:
            self.output_means.on_step_end(all_sum)

    def reseed(self, seed: int) -> None:
        """Give dropout and each task's router its own stream derived from `seed`."""
        if self.stacked:  # modules of another kind have dropout of their own
            self.experts.dropout.stream.reseed(stream_seed(seed, "dropout"))
        for task, router in enumerate(self.routers):
            cast(Router, router).stream.reseed(stream_seed(seed, "router", task))

    def route(self, x_BD: Tensor, user_B: Tensor | None) -> tuple[Tensor, Tensor, list[Routing]]:
        """Weights and selection (B, T, E), and the routing of each task."""
        routings = route(self.routers, x_BD, user_B)
        for router, routing in zip(self.routers, routings, strict=True):
            check_routing(routing, type(router).__name__, len(self.experts))
            if self.output_means is None and routing.default_weights_BE is not None:
                raise ConfigError(
                    f"router {type(router).__name__} returns default_weights_BE and must define "
                    "mean_momentum, got None; define it"
                )
        weights_BTE = torch.stack([routing.weights_BE for routing in routings], dim=1)
        return weights_BTE, torch.stack([r.selected_BE for r in routings], dim=1), routings

    def _check_replay(self) -> None:
        """Raise RuntimeError if what `torch.utils.checkpoint` runs again would decide anew."""

        def versions() -> list[int]:
            return [buffer._version for buffer in self.buffers()]

        if self.training and replayed(self, versions) not in (None, versions()):
            raise RuntimeError(
                "layer.on_step_end must be called after backward where torch.utils.checkpoint runs "
                "the layer again, got a call before; move it"
            )

    def _is_static(self, selected_BTE: Tensor) -> bool:
        if self.dispatch != "static" or self.output_means is not None:
            return False
        if _is_transformed() or torch.compiler.is_compiling() or not len(selected_BTE):
            return False
        # Pairs beyond the promise of a router would be lost: those of others are not trusted.
        is_known = all(type(router) in ROUTERS.values() for router in self.routers)
        return is_known and most_selected(self.routers) < DENSE_FROM * len(self.experts)

    def _is_sparse(self, selected_BTE: Tensor) -> bool:
        if _is_transformed():
            return False  # transforms cannot differentiate the custom backward of the sparse path
        if self.dispatch != "auto":
            return self.dispatch == "sparse"
        if torch.compiler.is_compiling() or _is_captured(selected_BTE):
            return False  # static shapes
        if most_selected(self.routers) < DENSE_FROM * len(self.experts):
            return True
        # Routers that become sparse as their gates saturate promise nothing: look.
        return selected_BTE.any(1).float().mean().item() < DENSE_FROM


def _sum_of_nothing(routings: Sequence[Routing]) -> Tensor:
    """0, with a gradient of 0 to all that a loss of routings without rows may read."""
    read = [(r.weights_BE, r.probs_BE, r.logits_BE, r.noise_scale_BE) for r in routings]
    return torch.stack([of.sum() for one in read for of in one if of is not None]).sum()


def _defaults(
    experts: Experts | nn.ModuleList, routers: Sequence[Router]
) -> ExpertOutputMeans | None:
    if isinstance(experts, Experts):
        return output_means_for(routers, *experts.bias_EH.shape)
    if output_means_for(routers, len(experts), 1) is not None:
        raise ConfigError(
            "a router with expert output means needs Experts, got a list of modules; choose another"
        )
    return None


def _is_transformed() -> bool:
    """Whether this runs inside a transform of torch.func; torch has no public test for it."""
    return bool(torch._C._are_functorch_transforms_active())


def _is_captured(like: Tensor) -> bool:
    """Whether a CUDA graph is being recorded."""
    return like.is_cuda and torch.cuda.is_current_stream_capturing()


def naive_moe(x_BD: Tensor, weights_BTE: Tensor, kernel_EDH: Tensor, bias_EH: Tensor) -> Tensor:
    """The definition, without dropout: y_bt = sum_e w_bte relu(x_b W_e + b_e). (B, T, H).

    Slow and obvious; the fast paths are compared with it in values and gradients.
    """
    hidden = [
        torch.relu(x_BD @ kernel + bias) for kernel, bias in zip(kernel_EDH, bias_EH, strict=True)
    ]
    terms = [weights_BTE[:, :, e, None] * h_BH[:, None] for e, h_BH in enumerate(hidden)]
    return torch.stack(terms).sum(0)
