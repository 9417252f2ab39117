"""Where the next item stands in a list of all items, by peers that are not trained by gradients.

A peer of order is a sum of `Carried` parts; each has a state per user that every event changes in
one step, so that every event of a log can be ranked in turn. Axes: I items, N ranked events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from research.time_peers.log import Log

STEPS = 10
"""How far apart two events of a user may lie to be counted together."""
L2 = 500.0
"""Of EASE."""
DAY = 86_400


class Carried(NamedTuple):
    """state = decay * state + weights of the item, without what fell out of the window."""

    weights_II: np.ndarray
    """float32: what an event with item i says of item j."""
    decay: float = 1.0
    window: int = 0
    """Last events that count; 0: all."""
    factor: float = 1.0


def rank(score_I: np.ndarray, target: int, seen: np.ndarray) -> int:
    """How many items come before `target`: a larger score, or an equal one and a lower index.

    Items `seen` are in no list; the target counts as not seen.
    """
    before = np.count_nonzero(score_I > score_I[target])
    before += np.count_nonzero(score_I[:target] == score_I[target])
    of_seen = score_I[seen]
    ahead = (of_seen > score_I[target]) | ((of_seen == score_I[target]) & (seen < target))
    return int(before - np.count_nonzero(ahead))


def carried_ranks(log: Log, ranked: np.ndarray, parts: Sequence[Carried]) -> np.ndarray:
    """The rank of each event of `ranked`, bool, given all earlier events of its user."""
    ranks = []
    for start, stop in zip(log.starts[:-1], log.starts[1:], strict=True):
        if not ranked[start:stop].any():
            continue
        last = start + np.flatnonzero(ranked[start:stop])[-1]
        states = [np.zeros(log.items, np.float32) for _ in parts]
        for n in range(start, last + 1):
            if ranked[n]:
                score_I = sum(part.factor * s for part, s in zip(parts, states, strict=True))
                ranks.append(rank(score_I, log.item[n], np.unique(log.item[start:n])))
            for part, state in zip(parts, states, strict=True):
                step(part, state, log.item[start : n + 1])
    return np.array(ranks)


def step(part: Carried, state_I: np.ndarray, items: np.ndarray) -> None:
    """Change the state by the last of the user's `items`."""
    state_I *= part.decay
    state_I += part.weights_II[items[-1]]
    if part.window and len(items) > part.window:
        leaves = part.weights_II[items[-1 - part.window]]
        state_I -= np.float32(part.decay**part.window) * leaves


def ease(train: Log, items: int) -> np.ndarray:
    """B of Steck 2019, "Embarrassingly shallow autoencoders for sparse data", equation 8."""
    ones = np.ones(len(train.user))
    seen_UI = scipy.sparse.csr_matrix((ones, (train.user, train.item)), (train.users, items))
    gram_II = (seen_UI.T @ seen_UI).toarray()
    gram_II[np.diag_indices_from(gram_II)] += L2
    inverse_II = scipy.linalg.inv(gram_II, overwrite_a=True, check_finite=False)
    weights_II = -inverse_II / np.diag(inverse_II)
    np.fill_diagonal(weights_II, 0)
    return weights_II.astype(np.float32)


def cooccurrence(train: Log, items: int, *, decay: float, steps: int = STEPS) -> np.ndarray:
    """How often j came within `steps` events behind i, decay**(distance - 1) each, per event i."""
    found_II = np.zeros((items, items), np.float32)
    for distance in range(1, steps + 1):
        same = train.user[distance:] == train.user[:-distance]
        pair = train.item[:-distance][same], train.item[distance:][same]
        weight = np.full(len(pair[0]), decay ** (distance - 1), np.float32)
        found_II += scipy.sparse.coo_matrix((weight, pair), (items, items)).toarray()
    return found_II / (np.bincount(train.item, minlength=items)[:, None] + 1)


def popular_ranks(
    log: Log, ranked: np.ndarray, *, days: float = 0, half_life: float = 0
) -> np.ndarray:
    """By how many events of anybody an item had strictly before: all, of the last `days`, or each
    halved in weight every `half_life` days."""
    order = np.argsort(log.time, kind="stable")
    time, item = log.time[order], log.item[order]
    weight = np.exp2((time - time[-1]) / (DAY * half_life)) if half_life else np.ones(len(time))
    score_I, entered, left = np.zeros(log.items), 0, 0
    ranks = np.zeros(len(order), np.int64)
    start_U = log.starts
    for n in order[ranked[order]]:
        now = log.time[n]
        stop = np.searchsorted(time, now)
        np.add.at(score_I, item[entered:stop], weight[entered:stop])
        entered = stop
        if days:
            gone = np.searchsorted(time, now - days * DAY)
            np.subtract.at(score_I, item[left:gone], 1)
            left = gone
        ranks[n] = rank(score_I, log.item[n], np.unique(log.item[start_U[log.user[n]] : n]))
    return ranks[ranked]


def frozen_ranks(log: Log, ranked: np.ndarray, score_I: np.ndarray) -> np.ndarray:
    """By the same score for everybody at all times."""
    start_U = log.starts
    places = np.flatnonzero(ranked)
    return np.array(
        [rank(score_I, log.item[n], np.unique(log.item[start_U[log.user[n]] : n])) for n in places]
    )


def figures(rank_N: np.ndarray, k: int = 10) -> dict[str, float]:
    """Hit rate and NDCG of lists with one relevant item each."""
    hit_N = rank_N < k
    gain_N = np.where(hit_N, 1 / np.log2(rank_N + 2), 0)
    return {f"hit_rate@{k}": float(hit_N.mean()), f"ndcg@{k}": float(gain_N.mean())}
