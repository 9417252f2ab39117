"""Expert profiles: the items and item features for which each expert is selected.

Routes a sample of items, from the most to the least popular, for a few users each.
Axes: M items, E experts, N values of a column.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from recsys_moe.artifact.idle import spared_experts
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.ranking.item_filters import filter_columns
from recsys_moe.inference.ranking.item_values import members_of

ITEMS, USERS = 500, 32
"""Each at equal distances: 16,000 passes of the routers, well below a second."""
OFTEN, RARELY = "popular items", "unpopular items"
"""The first and the last third of the items."""
FEWEST = 10
"""Items that a genre needs to be named."""
NOTABLE = 1.25
"""Times as often as on average from which an item or a genre is named for an expert."""
NAMED = 3
"""Names of a kind that an expert gets."""


@dataclass(frozen=True)
class Trait:
    """A value of an item column, or popularity."""

    column: str
    """"" for OFTEN and RARELY."""
    value: str
    lift: float
    """How often the expert is chosen for such items over how often for all."""


@dataclass(frozen=True)
class ExpertProfile:
    """Items and traits for which an expert is selected more often than on average; empty if it is
    selected equally often for all items, or hardly ever (`spared`)."""

    expert: int
    spared: bool
    traits: list[Trait]
    """Largest lift first."""
    items: list[int | str]
    """Raw ids, those of the largest lift first."""


def expert_profiles(predictor: Predictor) -> list[ExpertProfile]:
    """One per expert, over all tasks."""
    ranked_N = predictor.popularity.sort(descending=True, stable=True).indices
    item_M = ranked_N[spread(len(ranked_N), ITEMS)]
    if not predictor.artifact.model.routers:
        return []
    chosen_ME = _chosen(predictor, item_M)
    mean_E = chosen_ME.mean(0)
    lift_ME = chosen_ME / mean_E.clamp(min=1e-12)
    ids = predictor.items.ids.take(pa.array(item_M.numpy())).to_pylist()
    traits = _traits(predictor.artifact.items, item_M, lift_ME)
    profiles = [
        ExpertProfile(expert, False, traits[expert], [ids[row] for row in _largest(lift_M)])
        for expert, lift_M in enumerate(lift_ME.T)
    ]
    for expert in spared_experts(mean_E.tolist()):
        profiles[expert] = ExpertProfile(expert, True, [], [])
    return profiles


@torch.inference_mode()
def _chosen(predictor: Predictor, item_M: Tensor) -> Tensor:
    """(M, E): the share of users and tasks for which the expert is chosen."""
    model = predictor.artifact.model
    users = spread(predictor.users.feature.size, USERS).tolist()
    chosen_ME = torch.zeros(len(item_M), model.routers[0].shape.num_experts)
    for user in users:
        user_M = torch.full_like(item_M, user)
        for routing in predictor.routings(user_M, item_M):
            chosen_ME += routing.selected_BE
    return chosen_ME / (len(users) * len(model.routers))


def _traits(items: pa.Table, item_M: Tensor, lift_ME: Tensor) -> list[list[Trait]]:
    """Per expert the values of item columns with the largest mean lifts."""
    third = len(item_M) // 3
    ends = {OFTEN: lift_ME[:third], RARELY: lift_ME[len(item_M) - third :]}
    found = [
        [Trait("", name, float(part_ME[:, expert].mean())) for name, part_ME in ends.items()]
        for expert in range(lift_ME.shape[1])
    ]
    shown = items.take(pa.array(item_M.numpy()))
    for column in filter_columns(items):
        members = members_of(shown[column])
        rows_N = torch.bincount(members.name_M, minlength=len(members.names))
        sums_NE = lift_ME.new_zeros(len(rows_N), len(found))
        sums_NE.index_add_(0, members.name_M, lift_ME[members.row_M])
        for place in (rows_N >= FEWEST).nonzero()[:, 0].tolist():
            name, lifts = members.names[place], (sums_NE[place] / rows_N[place]).tolist()
            for traits, lift in zip(found, lifts, strict=True):
                traits.append(Trait(column, name, lift))
    return [_most(traits) for traits in found]


def _most(traits: list[Trait]) -> list[Trait]:
    """The largest lifts; of equal ones, which two columns have for the same items, the first."""
    notable = {trait.lift: trait for trait in reversed(traits) if trait.lift >= NOTABLE}
    return sorted(notable.values(), key=lambda trait: -trait.lift)[:NAMED]


def spread(size: int, most: int) -> Tensor:
    """At most `most` places of `size`, at equal distances, the first and the last among them."""
    # float64: float32 does not hold every whole number from 2**24 on.
    return torch.linspace(0, max(size - 1, 0), min(size, most), dtype=torch.float64).long()


def _largest(lift_M: Tensor) -> list[int]:
    """Rows of the largest lifts; ties go to the more popular item."""
    lifts, rows = lift_M.sort(descending=True, stable=True)
    return rows[lifts >= NOTABLE][:NAMED].tolist()
