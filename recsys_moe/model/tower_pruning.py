"""Tower pruning: scoring omits tower units that cannot change a score.

Weight decay takes units that do not help towards 0: of a tower of 256 often 100 are left after
training. How far a unit can move a logit follows from the weights: how large its output can be,
by the longest vectors of known users and items, times how much what comes after it amplifies.

Axes: E experts, D width of a user's and an item's vector, H expert width, J units of a layer.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from recsys_moe.model.moe_network import MoENetwork

M = TypeVar("M", bound=MoENetwork)

TOLERANCE = 1e-7
"""Most that what is left out of a layer can move a logit of known ids: float32 rounds to that."""
MULTIPLE = 16
"""Units are left in such numbers: a product of 102 columns takes a third longer than of 112."""


@torch.no_grad()
def with_pruned_towers(model: M) -> M:
    """The same model with smaller towers; all else is shared.

    Vectors of cold-start users may be longer than all known ones, and the tolerance grows with
    them. A model whose mixtures have no bound stays as it is.
    """
    bounded = all(math.isfinite(router.max_sum) for router in model.routers)
    if model.encoders is not None or model.moe.output_means is not None or not bounded:
        return model
    most_H = _most_of_experts(model)
    pairs = zip(model.routers, model.towers, strict=True)
    towers = nn.ModuleList(_smaller(tower, r.max_sum * most_H) for r, tower in pairs)
    return model.with_parts(towers=towers)


def _most_of_experts(model: MoENetwork) -> Tensor:
    """No expert's output for known ids is larger (H,): |w x| <= |w| |x| (Cauchy-Schwarz)."""
    experts, tables = model.moe.experts, (model.user_embedding, model.item_embedding)
    most_EH = experts.bias_EH.clone()
    for table, kernel_EDH in zip(tables, experts.kernel_EDH.chunk(2, dim=1), strict=True):
        most_EH += table.weight.norm(dim=1).amax() * kernel_EDH.norm(dim=1)
    return most_EH.relu_().amax(0)


def _smaller(tower: nn.Module, most_H: Tensor) -> nn.Sequential:
    """The tower without the units that cannot matter. `most_H`: no input of it is larger."""
    layers = [layer for layer in tower.children() if isinstance(layer, nn.Linear)]
    most, felt = [most_H], torch.ones_like(layers[-1].bias)
    for layer in layers[:-1]:
        most.append(torch.addmv(layer.bias, layer.weight.clamp(min=0), most[-1]).relu_())
    kept = [felt.bool()]
    for layer, most_J in zip(reversed(layers[1:]), reversed(most[1:]), strict=True):
        felt = felt @ layer.weight.abs()  # by how much the logit moves with a unit's output
        kept.append(_kept(felt * most_J))
    kept.append(torch.ones_like(most_H, dtype=torch.bool))
    kept.reverse()
    smaller = map(_part, layers, kept[1:], kept[:-1])
    return nn.Sequential(*[part for layer in smaller for part in (layer, nn.ReLU())][:-1])


def _kept(effect_J: Tensor) -> Tensor:
    """bool (J,): without the smallest, of which all together reach no further than TOLERANCE."""
    order_J = _ascending_order(effect_J)
    heard = int((effect_J[order_J].double().cumsum(0) <= TOLERANCE).logical_not().sum())
    mute_J = order_J[: max(0, len(order_J) - math.ceil(heard / MULTIPLE) * MULTIPLE)]
    return torch.ones_like(effect_J, dtype=torch.bool).index_fill_(0, mute_J, False)


def _ascending_order(values_J: Tensor) -> Tensor:
    """Indices (J,) from the smallest value to the largest, so that of equals the first ones stay.

    What is not finite comes last.
    """
    return len(values_J) - 1 - values_J.flip(0).argsort(stable=True)


def _part(layer: nn.Linear, rows: Tensor, columns: Tensor) -> nn.Linear:
    """The layer with some of its outputs (`rows`) and inputs."""
    result = nn.Linear(1, 1, device="meta")  # replaced at once
    result.in_features, result.out_features = int(columns.sum()), int(rows.sum())
    result.weight = nn.Parameter(layer.weight[rows][:, columns], requires_grad=False)
    result.bias = nn.Parameter(layer.bias[rows], requires_grad=False)
    return result
