"""Single changes to a training for slow_start.py, none of them a setting of the product.

Each is one line in CHANGES: what it does before training, to the optimizer, or before an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.routers import Routing
from recsys_moe.train.module import RecModule


class Changes(Callback):
    """Applies changes: name -> strength, see CHANGES."""

    def __init__(self, strengths: dict[str, float]) -> None:
        unknown = sorted(set(strengths) - set(CHANGES))
        if unknown:
            raise ValueError(f"try.{unknown[0]} is not one of {', '.join(CHANGES)}")
        self.strengths = strengths

    def on_train_start(self, trainer: Trainer, module: RecModule) -> None:
        for name, strength in self.strengths.items():
            with torch.no_grad():
                CHANGES[name](trainer, module.model, strength)

    def on_train_epoch_start(self, trainer: Trainer, module: RecModule) -> None:
        epochs = self.strengths.get("dense_epochs", 0)
        if epochs and trainer.current_epoch == epochs:
            for router in module.model.routers:
                del router._sampled  # the class has its own


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


def _dense(log_probs_BE: Tensor, probs_BE: Tensor, logits_BE: Tensor) -> Routing:
    everyone_BE = torch.ones_like(probs_BE, dtype=torch.bool)
    return Routing(probs_BE, everyone_BE, probs_BE, logits_BE)


def _dense_epochs(trainer: Trainer, model: MultiTaskMoE, strength: float) -> None:
    """All experts weighted by g in training; until when: `Changes.on_train_epoch_start`."""
    for router in model.routers:
        router._sampled = _dense


def _dense_gate(trainer: Trainer, model: MultiTaskMoE, strength: float) -> None:
    """The mixture is that of the draw, the gate's gradient goes to g of all experts.

    So experts are trained as before, and the gate without the noise of its draw and at the size
    of the dense gradient. Needs model.dispatch=dense: the others get a gradient, too.
    """
    for router in model.routers:
        draw = router._sampled

        def straight_through(*args: Any, draw: Callable[..., Routing] = draw) -> Routing:
            routing = draw(*args)
            probs_BE = args[1]
            routing.weights_BE = routing.weights_BE.detach() + probs_BE - probs_BE.detach()
            return routing

        router._sampled = straight_through


CHANGES: dict[str, Callable[[Trainer, MultiTaskMoE, float], None]] = {
    "embeddings": _scale(_tables),
    "gate": _scale(lambda model: [router.gate.weight for router in model.routers]),
    "kernels": _scale(lambda model: [model.moe.experts.kernel_EDH]),
    "biases": _biases,
    "alike": _alike,
    "gate_rate": _gate_rate,
    "gate_gradient": _gate_gradient,
    "dense_epochs": _dense_epochs,
    "dense_gate": _dense_gate,
}
