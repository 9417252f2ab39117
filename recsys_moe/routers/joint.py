"""Joint choice: one set of k experts per example for all tasks, each weighing them by its own gate.

Axes: B batch, T tasks, E experts, D input width.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from recsys_moe.errors import ConfigError
from recsys_moe.routers.base import GatedRouter, KConfig, Router, Routing, gate_logits
from recsys_moe.routers.selection import largest_k, softmax_over

Routers = Sequence[Router] | nn.ModuleList
"""One per task."""


class JointConfig(KConfig):
    """Settings of a router that can choose for all tasks together."""

    joint: bool = False
    """One set of k experts per example for all tasks, by the mean of their probabilities; each
    task weighs them by its own. Without it tasks choose apart, up to k each."""

    @property
    def idle_penalties(self) -> dict[str, str]:
        reason = "chooses by the mean of all tasks unless model.router.joint=false"
        return {"load": reason} if self.joint else {}


class JointRouter(GatedRouter):
    """A gated router that can choose for all tasks together; abstract.

    With `joint` experts are drawn, or kept, by q = (1/T) sum_t g_t, the mean of the tasks'
    softmaxes, and task t corrects its weights by q in place of g_t. An estimate of the mixture of
    task t from draws of q weighs what it drew by g_t / q (importance sampling). The mean bounds
    this ratio by T; where tasks differ a product of the softmaxes would not. Of all q it has the
    least sum_t KL(g_t | q), and its k largest keep the most of sum_t g_t.

    A call of one router decides for its task alone, and with a single task both forms are one.
    """

    @abstractmethod
    def together(self, routers: Sequence[JointRouter], x_BD: Tensor) -> list[Routing]:
        """The decisions of `routers`, one per task and alike; self is the first, which draws."""

    def logits(self, x_BD: Tensor) -> Tensor:
        """float32 (B, E), divided by `temperature` where there is one."""
        logits_BE = gate_logits(self.gate, x_BD)
        temperature = getattr(self.config, "temperature", 1)
        return logits_BE if temperature == 1 else logits_BE / temperature


def route(routers: Routers, x_BD: Tensor, user_B: Tensor | None) -> list[Routing]:
    """The decision of each task's router."""
    if choose_jointly(routers):
        return cast(JointRouter, routers[0]).together(cast(Sequence[JointRouter], routers), x_BD)
    return [router(x_BD, user_B) for router in routers]


def route_task(routers: Routers, task: int, x_BD: Tensor, user_B: Tensor | None) -> Routing:
    """That of one task; the others' routers run only where they have a say."""
    if choose_jointly(routers):
        return route(routers, x_BD, user_B)[task]
    return cast(Routing, routers[task](x_BD, user_B))


def choose_jointly(routers: Routers) -> bool:
    """Is there one choice for all tasks, two or more?"""
    return len(routers) > 1 and _is_joint(routers[0])


def _is_joint(router: nn.Module) -> bool:
    return isinstance(router, JointRouter) and bool(router.config.joint)


def check_alike(routers: Routers) -> None:
    """Raise ConfigError for routers with and without `joint`, or with it of several kinds."""
    first = type(routers[0]), routers[0].config
    if any(map(_is_joint, routers)) and any((type(r), r.config) != first for r in routers):
        raise ConfigError(
            "routers with joint=true must be of one kind with equal settings, got "
            f"{', '.join(type(router).__name__ for router in routers)}; build them alike"
        )


def by_mixture(logits: Sequence[Tensor], k: int) -> list[Routing]:
    """Of each task its softmax over the k experts with the largest q."""
    log_q_BE = log_mixture([logits_BE.log_softmax(-1) for logits_BE in logits])
    selected_BE = largest_k(log_q_BE, k)
    routings = [
        Routing(softmax_over(logits_BE, selected_BE), selected_BE, logits_BE.softmax(-1), logits_BE)
        for logits_BE in logits
    ]
    return chosen_by(log_q_BE, routings)


def chosen_by(log_q_BE: Tensor, routings: list[Routing]) -> list[Routing]:
    """The routings, which then tell what the choice was made by."""
    for routing in routings:
        routing.log_mixture_BE = log_q_BE
    return routings


def log_mixture(logs: Sequence[Tensor]) -> Tensor:
    """log q of the tasks' log g_t, (B, E) each. Without gradient, like any proposal's density:

    the mean of the estimates does not depend on q, and through it a task would teach the others'
    gates its own choice.
    """
    return torch.stack(tuple(logs)).detach().logsumexp(0) - math.log(len(logs))
