"""Single changes to a training for slow_start.py, none of them a setting of the product.

Each is one line in CHANGES, what it does before training, or in SCHEDULES, before an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.routers import Routing
from recsys_moe.train.module import RecModule


class Changes(Callback):
    """Applies changes: name -> strength, see CHANGES and SCHEDULES."""

    def __init__(self, strengths: dict[str, float]) -> None:
        known = [*CHANGES, *SCHEDULES]
        unknown = sorted(set(strengths) - set(known))
        if unknown:
            raise ValueError(f"try.{unknown[0]} is not one of {', '.join(known)}")
        self.strengths = strengths

    def on_train_start(self, trainer: Trainer, module: RecModule) -> None:
        for name in CHANGES.keys() & self.strengths.keys():
            with torch.no_grad():
                CHANGES[name](trainer, module.model, self.strengths[name])

    def on_train_epoch_start(self, trainer: Trainer, module: RecModule) -> None:
        for name in SCHEDULES.keys() & self.strengths.keys():
            SCHEDULES[name](module, self.strengths[name], trainer.current_epoch)


def gates(model: MultiTaskMoE) -> list[Tensor]:
    return [p for router in model.routers for p in router.gate.parameters()]


def _scale(find: Callable[[MultiTaskMoE], Iterable[Tensor]]) -> Callable[..., None]:
    def change(trainer: Trainer, model: MultiTaskMoE, strength: float) -> None:
        for values in find(model):
            values.mul_(strength)

    return change


def _tables(model: MultiTaskMoE) -> list[Tensor]:
    return [model.user_embedding.weight, model.item_embedding.weight]


def _gate_rate(trainer: Trainer, model: MultiTaskMoE, strength: float) -> None:
    """The gates in a group of their own, at `strength` times the rate."""
    (optimizer,), own = trainer.optimizers, gates(model)
    (group,) = optimizer.param_groups
    group["params"] = [p for p in group["params"] if not any(p is gate for gate in own)]
    settings = {name: value for name, value in group.items() if name != "params"}
    optimizer.add_param_group({**settings, "params": own, "lr": strength * group["lr"]})


def _gate_gradient(trainer: Trainer, model: MultiTaskMoE, strength: float) -> None:
    for values in gates(model):
        values.register_hook(lambda grad: strength * grad)


def _biases(trainer: Trainer, model: MultiTaskMoE, strength: float) -> None:
    """Another random offset for each expert."""
    bias_EH = model.moe.experts.bias_EH
    bias_EH.copy_(strength * torch.randn(bias_EH.shape, generator=_generator()))


def _alike(trainer: Trainer, model: MultiTaskMoE, strength: float) -> None:
    """All experts start as the first one: a draw then says nothing about the mixture."""
    kernel_EDH = model.moe.experts.kernel_EDH
    kernel_EDH.lerp_(kernel_EDH[:1].clone().expand_as(kernel_EDH), strength)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _dense(_: Tensor, log_probs_BE: Tensor, probs_BE: Tensor, logits_BE: Tensor) -> Routing:
    everyone_BE = torch.ones_like(probs_BE, dtype=torch.bool)
    return Routing(probs_BE, everyone_BE, probs_BE, logits_BE)


def _dense_epochs(module: RecModule, strength: float, epoch: int) -> None:
    """All experts weighted by g in the first epochs of training."""
    for router in module.model.routers:
        if epoch == 0:
            router._sampled = _dense
        elif epoch == strength:
            del router._sampled  # the class has its own


def _temperature_from(module: RecModule, strength: float, epoch: int) -> None:
    """From `strength` to 1 by equal factors in LENGTH epochs."""
    _set_routers(module, temperature=strength ** max(1 - epoch / LENGTH, 0))


def _k_from(module: RecModule, strength: float, epoch: int) -> None:
    """From `strength` to the router's k by equal factors in LENGTH epochs."""
    left = max(1 - epoch / LENGTH, 0)
    k = module.config.model.router.k
    _set_routers(module, k=round(k * (strength / k) ** left))


def _set_routers(module: RecModule, **settings: float) -> None:
    for router in module.model.routers:
        router.config = router.config.model_copy(update=settings)


def _lasso_to(module: RecModule, strength: float, epoch: int) -> None:
    """The trimmed lasso's weight from 0 to `strength` in equal steps of LENGTH epochs."""
    module.penalty_weights["trimmed_lasso"] = strength * min(epoch / LENGTH, 1)


def _learned_temperature(trainer: Trainer, model: MultiTaskMoE, strength: float) -> None:
    """A factor of each gate's logits, learned as its logarithm at `strength` times the rate."""
    (optimizer,) = trainer.optimizers
    factors = [torch.zeros((), requires_grad=True) for _ in model.routers]
    for router, factor in zip(model.routers, factors, strict=True):
        router.gate.register_forward_hook(lambda _, x, y, factor=factor: y * factor.exp())
    settings = {
        name: value for name, value in optimizer.param_groups[0].items() if name != "params"
    }
    own = {"params": factors, "lr": strength * settings["lr"], "weight_decay": 0.0}
    optimizer.add_param_group({**settings, **own})


def _warm_up(trainer: Trainer, model: MultiTaskMoE, strength: float) -> None:
    """Rates from 0 in equal steps over `strength` epochs."""
    (optimizer,), steps = trainer.optimizers, strength * trainer.num_training_batches
    rates = [group["lr"] for group in optimizer.param_groups]

    def set_rates(*_: Any) -> None:
        share = min((trainer.global_step + 1) / steps, 1)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * share

    optimizer.register_step_pre_hook(set_rates)


def _dense_gate(trainer: Trainer, model: MultiTaskMoE, strength: float) -> None:
    """The mixture is that of the draw, the gate's gradient goes to g of all experts.

    So experts are trained as before, and the gate without the noise of its draw and at the size
    of the dense gradient. Needs model.dispatch=dense: the others get a gradient, too.
    """
    for router in model.routers:
        draw = router._sampled

        def straight_through(*args: Any, draw: Callable[..., Routing] = draw) -> Routing:
            routing = draw(*args)
            probs_BE = args[2]  # of the draw, its log, the probabilities, the logits
            routing.weights_BE = routing.weights_BE.detach() + probs_BE - probs_BE.detach()
            return routing

        router._sampled = straight_through


CHANGES: dict[str, Callable[[Trainer, MultiTaskMoE, float], None]] = {
    "embeddings": _scale(_tables),
    "gate": _scale(lambda model: [router.gate.weight for router in model.routers]),
    "kernels": _scale(lambda model: [model.moe.experts.kernel_EDH]),
    "biases": _biases,
    "alike": _alike,
    "router_lr_multiplier": _gate_rate,
    "gate_gradient": _gate_gradient,
    "dense_gate": _dense_gate,
    "learned_temperature": _learned_temperature,
    "warm_up": _warm_up,
}
SCHEDULES: dict[str, Callable[[RecModule, float, int], None]] = {
    "dense_epochs": _dense_epochs,
    "temperature_from": _temperature_from,
    "k_from": _k_from,
    "lasso_to": _lasso_to,
}
LENGTH = 8
"""Epochs that schedules take."""
