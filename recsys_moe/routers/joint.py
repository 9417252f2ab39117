"""Joint choice: tasks choose their k experts per example among J that all of them share.

Two phases: J experts by q = (1/T) sum_t g_t, the mean of the tasks' softmaxes, then each task's k
of these. Axes: B batch, T tasks, E experts, D input width.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from recsys_moe.errors import ConfigError
from recsys_moe.routers.base import GatedRouter, Router, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import largest_k
from recsys_moe.routers.settings import KConfig
from recsys_moe.routers.systematic import draw_systematic, inclusion_probabilities

Routers = Sequence[Router] | nn.ModuleList
"""One per task."""


class JointConfig(KConfig):
    """Settings of a router that can choose among experts which all tasks share."""

    joint: int = 0
    """Experts per example that all tasks share, each choosing its k among them, k..num_experts;
    0: tasks choose apart, up to k each."""

    @property
    def idle_penalties(self) -> dict[str, str]:
        reason = "chooses among experts that tasks share unless model.router.joint=0"
        return {"load": reason} if self.joint else {}

    def check(self, num_experts: int) -> None:
        super().check(num_experts)
        if self.joint and not self.k <= self.joint <= num_experts:
            raise ValueError(
                f"model.router.joint must be 0 or in model.router.k={self.k}.."
                f"model.num_experts={num_experts}, got {self.joint}; change it or k"
            )


class Shared(NamedTuple):
    """Experts that all tasks share for an example."""

    chosen_BE: Tensor
    """bool, J per row."""
    log_inclusion_BE: Tensor
    """Log of the probability with which each of them was drawn; 0 where nothing was drawn."""


class JointRouter(GatedRouter):
    """A gated router that can choose among experts which all tasks share; abstract.

    In training a router that samples draws the J with inclusion probabilities pi = min(1, c q).
    Task t then draws from g_t / pi on them (sampling, importance resampling: Rubin 1987,
    https://doi.org/10.2307/2289460): a single draw i of all has the probability pi_i g_ti / pi_i =
    g_ti up to the normalisation, whose mean is 1, and exactly with J = E. What it drew it weighs as
    without `joint`. Of all densities q has the least sum_t KL(g_t | q), and g_t / q <= T; where
    tasks differ the ratio to a product of softmaxes has no bound. Elsewhere the J are those with
    the largest q, which keep the most of sum_t g_t, and task t takes its k largest among them.

    A call of one router decides for its task alone, and with a single task both forms are one.
    """

    @abstractmethod
    def among(self, logits_BE: Tensor, shared: Shared) -> Routing:
        """The decision by the logits of the task, among the experts that tasks share."""

    def logits(self, x_BD: Tensor) -> Tensor:
        """float32 (B, E), divided by `temperature` where there is one."""
        logits_BE = gate_logits(self.gate, x_BD)
        temperature = getattr(self.config, "temperature", 1)
        return logits_BE if temperature == 1 else logits_BE / temperature

    @property
    def draws(self) -> bool:
        """Does it sample in the current mode?"""
        return False

    def share(self, logits: Sequence[Tensor]) -> Shared:
        """Of the tasks' logits (B, E); drawn from the stream of this router."""
        log_q_BE, count = log_mixture(logits), self.config.joint
        if not self.draws:
            return Shared(largest_k(log_q_BE, count), torch.zeros_like(log_q_BE))
        inclusion_BE = inclusion_probabilities(log_q_BE, count)
        generator = self.stream.generator(log_q_BE.device)
        chosen_BE = draw_systematic(inclusion_BE, generator)
        return Shared(chosen_BE, inclusion_BE.log().to(log_q_BE.dtype))


def within(logits_BE: Tensor, shared: Shared | None) -> Tensor:
    """Logits less those of the inclusion, out of reach off the shared experts.

    Nothing is drawn where these logits underflow, and a largest one is never among them.
    """
    if shared is None:
        return logits_BE
    logits_BE = logits_BE - shared.log_inclusion_BE
    return logits_BE.masked_fill(~shared.chosen_BE, torch.finfo(logits_BE.dtype).min)


def log_mixture(logits: Sequence[Tensor]) -> Tensor:
    """log q (B, E) of the tasks' logits, without gradient."""
    logs = torch.stack([logits_BE.detach().log_softmax(-1) for logits_BE in logits])
    return logs.logsumexp(0) - math.log(len(logs))


def route(routers: Routers, x_BD: Tensor, user_B: Tensor | None) -> list[Routing]:
    """The decision of each task's router."""
    if not choose_jointly(routers):
        return [router(x_BD, user_B) for router in routers]
    alike = [cast(JointRouter, router) for router in routers]
    logits = [router.logits(x_BD) for router in alike]
    shared = alike[0].share(logits)
    routings = [
        router.among(logits_BE, shared) for router, logits_BE in zip(alike, logits, strict=True)
    ]
    for routing in routings:
        routing.shared_BE = shared.chosen_BE
    return routings


def route_task(routers: Routers, task: int, x_BD: Tensor, user_B: Tensor | None) -> Routing:
    """That of one task; the others' routers run only where they have a say."""
    if choose_jointly(routers):
        return route(routers, x_BD, user_B)[task]
    return cast(Routing, routers[task](x_BD, user_B))


def most_selected(routers: Routers) -> int:
    """Most distinct experts that an example visits in the current mode."""
    most = [cast(Router, router).max_selected for router in routers]
    if not choose_jointly(routers):
        return sum(most)
    shared = cast(JointRouter, routers[0]).config.joint
    return min(sum(most), max(*most, shared))  # an expert that no task chooses is not visited


def choose_jointly(routers: Routers) -> bool:
    """Do tasks, two or more, share experts?"""
    return len(routers) > 1 and _is_joint(routers[0])


def _is_joint(router: nn.Module) -> bool:
    return isinstance(router, JointRouter) and bool(router.config.joint)


def check_alike(routers: Routers) -> None:
    """Raise ConfigError for routers with and without `joint`, or with it of several kinds."""
    first = type(routers[0]), routers[0].config
    if any(map(_is_joint, routers)) and any((type(r), r.config) != first for r in routers):
        raise ConfigError(
            "routers with joint must be of one kind with equal settings, got "
            f"{', '.join(type(router).__name__ for router in routers)}; build them alike"
        )
