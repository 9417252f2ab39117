"""Logits of one pair in plain numpy: a fraction of what the tensor operations cost to call.

The arithmetic of one pair is six products of a matrix and a vector, about 20 us; the two dozen
tensor operations around them take ten times as long. Numpy's calls cost a fifth of torch's. Routers
with a linear gate are repeated here by their rule; any other router runs as it is, on one row.
Axes: T tasks, E experts, V visited experts, D input width, H expert width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.routers import Router
from recsys_moe.routers.moesart import MoesartRouter
from recsys_moe.routers.smoe import SMoERouter
from recsys_moe.routers.softmax import SoftmaxRouter
from recsys_moe.routers.topk import TopKRouter
from recsys_moe.routers.vmoe import VMoERouter

WORTH_SPARSE, WORTH_DENSE, WORTH_IN_TENSORS = 8, 1, 1
"""Pairs up to which one after the other is faster than all in tensors: where numpy repeats routers
that keep at most half of the experts, or more of them, or where a router runs in tensors."""

Array = np.ndarray[Any, np.dtype[np.float32]]
Chosen = Iterable[tuple[int, float]]
"""Experts with their weights."""
Decide = Callable[[Array, int], Chosen]
"""Input (D,) and index of the user -> the router's choice."""


@dataclass(frozen=True)
class Rule:
    """What a router with a linear gate does at evaluation."""

    k: int
    """The k largest logits are kept; among equals the lower index wins."""
    weights: Literal["equal", "kept", "renormalised"]
    """1/k each, or the softmax of all logits, or the softmax of the kept ones."""
    temperature: float = 1.0
    """Divides the logits."""

    def choose(self, logits_E: Array) -> Chosen:
        kept = (-logits_E).argsort(kind="stable")[: self.k]
        if self.weights == "equal":
            return [(expert, 1 / self.k) for expert in kept.tolist()]
        power_E = np.exp((logits_E - logits_E[kept[0]]) / self.temperature)
        power_K = power_E[kept]
        total = (power_E if self.weights == "kept" else power_K).sum()
        return zip(kept.tolist(), (power_K / total).tolist(), strict=True)


class OnePair:
    """Logits of one (user, item) at a time, equal to those of the model within rounding.

    For models on the CPU whose rows are routed independently. The arrays are views of the
    parameters, which must not be moved afterwards. Safe to use from several threads.
    """

    def __init__(self, model: MultiTaskMoE) -> None:
        experts = model.moe.experts
        self._tables = _array(model.user_embedding.weight), _array(model.item_embedding.weight)
        self._kernels = list(_array(experts.kernel_EDH))
        self._bias_EH = _array(experts.bias_EH)
        self._decisions = [_decision(router) for router in model.routers]
        self.worth_up_to = _worth_up_to(model.routers)
        """Pairs up to which a loop over them takes less time than tensors would."""
        self._towers = [_layers(tower) for tower in model.towers]

    def logits(self, user: int, item: int) -> list[float]:
        """One logit per task. Indices of a user and an item, counts meaning unseen."""
        x_D = np.concatenate((self._tables[0][user], self._tables[1][item]))
        mixed_TH = self._mixed(x_D, [decide(x_D, user) for decide in self._decisions])
        pairs = zip(self._towers, mixed_TH, strict=True)
        return [_through(layers, mixed_H) for layers, mixed_H in pairs]

    def _mixed(self, x_D: Array, chosen_T: list[Chosen]) -> Array:
        """The mixture of each task, (T, H)."""
        row_of: dict[int, int] = {}
        weights = [
            (task, row_of.setdefault(expert, len(row_of)), weight)
            for task, chosen in enumerate(chosen_T)
            for expert, weight in chosen
        ]
        weights_TV = np.zeros((len(chosen_T), len(row_of)), np.float32)
        for task, row, weight in weights:
            weights_TV[task, row] = weight
        hidden_VH = self._bias_EH[list(row_of)]
        for expert, row in row_of.items():
            hidden_VH[row] += x_D.dot(self._kernels[expert])
        mixed_TH: Array = weights_TV @ np.maximum(hidden_VH, 0, out=hidden_VH)
        return mixed_TH


def _through(layers: list[tuple[Array, Array]], x_H: Array) -> float:
    """The logit: dense layers with ReLU between them."""
    *inner, (kernel_OH, bias_O) = layers
    for kernel, bias in inner:
        x_H = np.maximum(kernel.dot(x_H) + bias, 0)
    return float(kernel_OH[0].dot(x_H) + bias_O[0])


def _layers(tower: nn.Module) -> list[tuple[Array, Array]]:
    linear = [layer for layer in tower.children() if isinstance(layer, nn.Linear)]
    return [(_array(layer.weight), _array(layer.bias)) for layer in linear]


def _array(values: Tensor) -> Array:
    found: Array = values.detach().numpy()
    return found


def _decision(router: Router) -> Decide:
    rule = rule_of(router)
    if rule is None:
        return _by_tensors(router)
    gate: nn.Linear = router.gate  # type: ignore[assignment]
    kernel_ED, bias_E = _array(gate.weight), _array(gate.bias)
    return lambda x_D, user: rule.choose(kernel_ED.dot(x_D) + bias_E)


def _by_tensors(router: Router) -> Decide:
    """The router's own forward pass."""

    @torch.inference_mode()
    def decide(x_D: Array, user: int) -> Chosen:
        routing = router(torch.from_numpy(x_D)[None], torch.tensor([user]))
        weights = routing.weights_BE[0].tolist()
        return [(expert, weight) for expert, weight in enumerate(weights) if weight]

    return decide


def _worth_up_to(routers: list[Router]) -> int:
    found = WORTH_SPARSE
    for router in routers:
        rule = rule_of(router)
        if rule is None:
            return WORTH_IN_TENSORS
        if 2 * rule.k > router.shape.num_experts:
            found = WORTH_DENSE
    return found


def rule_of(router: Router) -> Rule | None:
    """How to repeat a router's evaluation in numpy; None where that is not known."""
    find = _RULES.get(type(router))
    return None if find is None else find(router)


def _of_moesart(router: Any) -> Rule | None:
    config, experts = router.config, router.shape.num_experts
    if config.inference == "sparse":
        return Rule(config.k, "equal")
    return Rule(experts, "kept", config.temperature) if config.inference == "dense" else None


def _of_softmax(router: Any) -> Rule:
    return Rule(router.max_selected, "renormalised")


def _of_topk(router: Any) -> Rule | None:
    return None if router.permutation is not None else Rule(router.config.k, "renormalised")


def _of_top_softmax(router: Any) -> Rule:
    return Rule(router.config.k, "kept")


_RULES: dict[type[Router], Callable[[Any], Rule | None]] = {
    MoesartRouter: _of_moesart,
    SoftmaxRouter: _of_softmax,
    TopKRouter: _of_topk,
    VMoERouter: _of_top_softmax,
    SMoERouter: _of_top_softmax,
}
