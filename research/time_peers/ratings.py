"""Means of users and items, frozen at a cut or running with time. Axes: N events, U users."""

from __future__ import annotations

import numpy as np

from research.time_peers.log import Log

DAMPING = 5
"""Events with the mean rating that are added to those of every user and item."""


def running_sums(value_N: np.ndarray, group_N: np.ndarray, place_N: np.ndarray) -> np.ndarray:
    """(N,): damped mean of the values of the same group from its first place to `place_N` - 1.

    The groups ascend.
    """
    first_N = np.searchsorted(group_N, group_N)
    before = np.r_[0, np.cumsum(value_N)]
    return (before[place_N] - before[first_N]) / (place_N - first_N + DAMPING)


def running_items(log: Log, mean: float) -> np.ndarray:
    """(N,): what ratings of the item deviate from `mean`, over all events strictly before."""
    order = np.lexsort((log.time, log.item))
    item, time = log.item[order], log.time[order]
    new = np.r_[True, (item[1:] != item[:-1]) | (time[1:] != time[:-1])]
    place = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    found = np.empty(len(order))
    found[order] = running_sums(log.rating[order] - mean, item, place)
    return found


def frozen_items(log: Log, train: np.ndarray, mean: float) -> np.ndarray:
    """(N,): the same over the events `train`, bool (N,)."""
    return damped(log.item, log.rating - mean, train)[log.item]


def damped(index_N: np.ndarray, value_N: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Damped mean of the values of each index over the events `train`."""
    size = int(index_N.max()) + 1
    sums = np.bincount(index_N[train], value_N[train], size)
    return sums / (np.bincount(index_N[train], minlength=size) + DAMPING)


def predictions(log: Log, train: np.ndarray) -> dict[str, np.ndarray]:
    """(N,) by the name of a peer; `train`: the events up to the cut, bool (N,)."""
    mean = float(log.rating[train].mean())
    frozen_N, running_N = frozen_items(log, train, mean), running_items(log, mean)
    left_N = log.rating - mean - frozen_N
    places = {"log": np.arange(len(log.user)), "strict": log.strictly_before()}
    found = {
        "mean": np.full(len(log.user), mean),
        "item, frozen": mean + frozen_N,
        "item + user, frozen": mean + frozen_N + damped(log.user, left_N, train)[log.user],
    }
    for rule, place_N in places.items():
        user_N = running_sums(left_N, log.user, place_N)
        found[f"item + running user / {rule}"] = mean + frozen_N + user_N
        user_N = running_sums(log.rating - mean - running_N, log.user, place_N)
        found[f"running item + running user / {rule}"] = mean + running_N + user_N
    return found
