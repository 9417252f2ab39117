"""What the layer refuses: experts and routers that do not fit, routings of a wrong shape."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from recsys_moe.errors import ConfigError
from recsys_moe.model.experts import Experts
from recsys_moe.routers import Router, Routing


def check_shapes(experts: Experts | Sequence[nn.Module], routers: Sequence[Router]) -> None:
    """Raise ValueError without a list of routers that were built for the experts' sizes."""
    if not isinstance(experts, Experts | Sequence | nn.ModuleList) or not len(experts):
        raise ValueError(f"experts must be Experts or a list of modules, got {experts!r:.60}")
    if not isinstance(routers, Sequence | nn.ModuleList) or not len(routers):
        raise ValueError(f"routers must be a list with a router per task, got {routers!r:.60}")
    for router in routers:
        if not isinstance(router, Router):
            raise ValueError(
                "routers must be recsys_moe.routers.Router, got a "
                f"{type(router).__name__}; see docs/how-to/own-router.md"
            )
    # modules say nothing of their input, so their routers must agree among themselves
    like = experts.kernel_EDH.shape[1] if isinstance(experts, Experts) else None
    num_experts, input_dim = len(experts), like or routers[0].shape.input_dim
    for router in routers:
        shape = router.shape
        if (shape.num_experts, shape.input_dim) != (num_experts, input_dim):
            raise ValueError(
                f"routers must be built for the experts' input_dim={input_dim} and "
                f"num_experts={num_experts}, got a {type(router).__name__} for {shape.input_dim} "
                f"and {shape.num_experts}"
            )


def check_routing(routing: object, router: str, num_experts: int) -> None:
    """Raise ConfigError unless a custom router returned weights and a mask of E columns."""
    if not isinstance(routing, Routing):
        raise ConfigError(
            f"forward of router {router} must return a recsys_moe.routers.Routing, "
            f"got {type(routing).__name__}; see docs/how-to/own-router.md"
        )
    for name in ("weights_BE", "selected_BE"):
        shape = tuple(getattr(routing, name).shape)
        if len(shape) != 2 or shape[-1] != num_experts:
            raise ConfigError(
                f"{name} of router {router} must be (rows, model.num_experts={num_experts}), "
                f"got shape {shape}; use self.shape.num_experts"
            )
