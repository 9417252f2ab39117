"""Routing weights in numpy float64, written from the formulas of docs/reference/routers.md alone.

Nothing of the package is imported. Plain loops where a formula has a sum: this is to be read beside
the page. `p`: the parameters by their names in the artifact.
Axes: B batch, E experts, D input width, K selectors or trees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Parameters = dict[str, Array]


def linear(x_BD: Array, p: Parameters, name: str) -> Array:
    return x_BD @ p[f"{name}.weight"].T + p.get(f"{name}.bias", np.zeros(()))


def softmax(o_BE: Array) -> Array:
    if not o_BE.size:
        return o_BE
    e_BE = np.exp(o_BE - o_BE.max(-1, keepdims=True))
    return e_BE / e_BE.sum(-1, keepdims=True)


def top(o_BE: Array, k: int) -> Mask:
    """The k largest of each row; among equals the lower index wins."""
    order_BE = np.argsort(-o_BE, axis=-1, kind="stable")
    mask_BE = np.zeros(o_BE.shape, dtype=bool)
    np.put_along_axis(mask_BE, order_BE[:, :k], True, axis=-1)
    return mask_BE


def softmax_on(o_BE: Array, mask_BE: Mask) -> Array:
    e_BE = np.where(mask_BE, o_BE, -np.inf)
    return softmax(e_BE)


def kept(o_BE: Array, k: int) -> Array:
    """g_i on the k largest, not renormalised."""
    mask_BE = top(o_BE, k)
    return np.where(mask_BE, softmax(o_BE), 0.0)


# --- one function per router: (x, p, settings) -> weights at inference


def dense_softmax(x: Array, p: Parameters, inference: str = "dense", inference_k: int = 2) -> Array:
    o = linear(x, p, "gate")
    return softmax(o) if inference == "dense" else softmax_on(o, top(o, inference_k))


def topk(x: Array, p: Parameters, k: int = 2) -> Array:
    o = linear(x, p, "gate")
    return softmax_on(o, top(o, k))


def kept_softmax(x: Array, p: Parameters, k: int = 2) -> Array:
    """vmoe and smoe without their noise."""
    return kept(linear(x, p, "gate"), k)


def moesart(
    x: Array, p: Parameters, k: int = 2, temperature: float = 1, inference: str = "sparse"
) -> Array:
    o = linear(x, p, "gate") / temperature
    return softmax(o) if inference == "dense" else top(o, k) / k


def pps(
    x: Array, p: Parameters, k: int = 2, temperature: float = 1, inference: str = "sparse"
) -> Array:
    o = linear(x, p, "gate") / temperature
    return softmax(o) if inference == "dense" else softmax_on(o, top(o, k))


def expert_choice(x: Array, p: Parameters, k: float = 2, eval_group: int = 512) -> Array:
    g, w = softmax(linear(x, p, "gate")), []
    for start in range(0, len(x), eval_group):
        part = g[start : start + eval_group]
        rows, experts = part.shape
        c = min(rows, max(1, math.ceil(rows * k / experts - 1e-9)))
        w.append(np.where(top(part.T, c).T, part, 0.0))
    return np.concatenate(w) if w else g


def unit(v: Array) -> Array:
    length = np.sqrt((v**2).sum(-1, keepdims=True))
    return np.where(length < 1e-12, 0.0, v / np.where(length < 1e-12, 1.0, length))


def xmoe(x: Array, p: Parameters, k: int = 2) -> Array:
    temperature = max(math.exp(p["theta"]), 0.01)
    cosine = unit(linear(x, p, "projection")) @ unit(p["embedding_ER"]).T
    return kept(cosine / temperature, k)


def smooth_step(t: Array, gamma: float) -> Array:
    inside = 0.5 + 3 * t / (2 * gamma) - 2 * t**3 / gamma**3
    return np.where(t <= -gamma / 2, 0.0, np.where(t >= gamma / 2, 1.0, inside))


def selector_probs(x: Array, p: Parameters, k: int, gamma: float, experts: int) -> Array:
    """q_ji of DSelect-k, (B, K, E)."""
    bits = math.ceil(math.log2(experts))
    s = smooth_step(linear(x, p, "bit_gate"), gamma).reshape(len(x), k, bits)
    q = np.ones((len(x), k, experts))
    for i, bit in itertools.product(range(experts), range(bits)):
        is_one = i >> (bits - 1 - bit) & 1  # the most significant bit first
        q[:, :, i] *= s[:, :, bit] if is_one else 1 - s[:, :, bit]
    return q


def dselect_k(x: Array, p: Parameters, k: int = 2, gamma: float = 1, experts: int = 8) -> Array:
    share = softmax(linear(x, p, "selector_gate"))
    return (share[:, :, None] * selector_probs(x, p, k, gamma, experts)).sum(1)


def leaf_probs(x: Array, p: Parameters, k: int, gamma: float, experts: int) -> Array:
    """p_ji of COMET, (B, K, E): nodes in heap order, S to the left, leaves from left to right."""
    s = smooth_step(linear(x, p, "split_gate"), gamma).reshape(len(x), k, experts - 1)

    def leaves(node: int, reached: Array) -> Iterator[Array]:
        if node >= experts - 1:
            yield reached
            return
        yield from leaves(2 * node + 1, reached * s[:, :, node])
        yield from leaves(2 * node + 2, reached * (1 - s[:, :, node]))

    return np.stack(list(leaves(0, np.ones((len(x), k)))), axis=-1)


def comet(x: Array, p: Parameters, k: int = 2, gamma: float = 1, experts: int = 8) -> Array:
    reached = leaf_probs(x, p, k, gamma, experts)
    scores = linear(x, p, "leaf_gate").reshape(reached.shape) + np.log(reached + 1e-8)
    flat = softmax_on(scores.reshape(len(x), k * experts), reached.reshape(len(x), -1) > 0)
    return flat.reshape(reached.shape).sum(1)


def entropy(probs: Array) -> float:
    """Mean over the batch of the sum of -p log(p + 1e-6) over selectors or trees."""
    return float((-probs * np.log(probs + 1e-6)).sum((1, 2)).mean())


def unused_codes(q: Array) -> float:
    return float((1 / (1e-6 + q.sum(-1))).sum(-1).mean())


def base(x: Array, p: Parameters) -> Array:
    o = linear(x, p, "gate")
    return np.where(top(o, 1), 1 / (1 + np.exp(-np.clip(o, -700, 700))), 0.0)


def sinkhorn_base(x: Array, p: Parameters) -> Array:
    return kept(linear(x, p, "gate"), 1)


def sinkhorn_base_training(x: Array, p: Parameters, rounds: int = 50) -> Array:
    o = linear(x, p, "gate")
    rows, experts = o.shape
    plan = np.exp(o - o.max())
    for _ in range(rounds):
        plan = plan / plan.sum(1, keepdims=True)
        plan = plan / plan.sum(0, keepdims=True) * rows / experts
    return np.where(top(plan, 1), softmax(o), 0.0)


def on_simplex(v: Array, k: int) -> Array:
    """Projection of one row on the simplex with at most k non-zeros: the k largest, projected."""
    order = np.argsort(-v, kind="stable")[:k]
    result = np.zeros_like(v)
    for size in range(k, 0, -1):  # the largest support whose entries all stay positive
        chosen = order[:size]
        level = (v[chosen].sum() - 1) / size
        if (v[chosen] > level).all():
            result[chosen] = v[chosen] - level
            return result
    raise AssertionError("one entry alone is 1")


def sparse_ot(
    x: Array, p: Parameters, k: int = 2, gamma: float = 1, steps: int = 20, step_size: float = 0.01
) -> Array:
    """One group. Adam with betas .9 and .999 and epsilon 1e-8."""
    g = softmax(linear(x, p, "gate"))
    experts = g.shape[1]
    price, mean, square = (np.zeros(experts) for _ in range(3))
    for step in range(1, steps + 1):
        plan = np.stack([on_simplex((row + price) / gamma, k) for row in g])
        slope = 1 / experts - plan.mean(0)
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        price = price + step_size * mean / (1 - 0.9**step) / (
            np.sqrt(square / (1 - 0.999**step)) + 1e-8
        )
    plan = np.stack([on_simplex((row + price) / gamma, k) for row in g])
    return np.where(plan > 0, g, 0.0)


def soft_topk(
    x: Array, p: Parameters, k: int = 2, softness: float = 0.1, norm: Any = "4/3"
) -> Array:
    o = linear(x, p, "gate")
    mask = np.stack([soft_mask(row, k, softness, 2 if norm == 2 else 4) for row in o])
    w = mask * softmax(o)
    return w / w.sum(-1, keepdims=True)


def soft_mask(o: Array, k: int, softness: float, q: int) -> Array:
    """((o - v) / l)^(q-1), v the isotonic regression of the sorted o, less l on the top k."""
    order = np.argsort(-o, kind="stable")
    s, is_top = o[order] / softness, np.arange(len(o)) < k
    blocks: list[list[int]] = []
    for place in range(len(s)):  # pool adjacent violators
        blocks.append([place])
        while len(blocks) > 1 and level(s, is_top, blocks[-2], q) < level(s, is_top, blocks[-1], q):
            last = blocks.pop()
            blocks[-1] += last
    mask = np.zeros(len(o))
    for block in blocks:
        mask[order[block]] = (s[block] - level(s, is_top, block, q)) ** (q - 1)
    return mask.clip(0, 1)


def level(s: Array, is_top: Mask, block: list[int], q: int) -> float:
    """v of a block: sum (s_i - v)^(q-1) over it is the number of its top entries."""
    entries, count = s[block].tolist(), int(is_top[block].sum())
    low, high = min(entries) - 1, max(entries)
    for _ in range(60):  # halves
        middle = (low + high) / 2
        total = sum((one - middle) ** (q - 1) for one in entries)
        low, high = (middle, high) if total > count else (low, middle)
    return (low + high) / 2


def moesart_training(g: Array, r: NDArray[np.int64], k: int) -> Iterator[Array]:
    """Eq. (3) of one row for every adjusted expert z: w_z = r_z g_z / D, w_i = r_i / (k-1) / D."""
    for z in np.flatnonzero(r):
        w = r / (k - 1)
        w[z] = r[z] * g[z]
        yield w / w.sum()


def cgc(x: Array, p: Parameters) -> Array:
    """Of one task: half of the experts, rounded down, are its own, and all are in the gate."""
    return softmax(linear(x, p, "gate"))


def loss_free(x: Array, p: Parameters, k: int = 2) -> Array:
    log_s = -np.logaddexp(0.0, -linear(x, p, "gate"))
    return softmax_on(log_s, top(np.exp(log_s) + p["balance_E"], k))


def relu(x: Array, p: Parameters, k: int = 2) -> Array:
    """k steers training only."""
    return np.maximum(linear(x, p, "gate"), 0.0)


def sparsemixer(x: Array, p: Parameters, k: int = 2, epsilon: float = 0.1) -> Array:
    o = linear(x, p, "gate")
    w = np.zeros_like(o)
    for row, weights in zip(o, w, strict=True):
        left = list(range(len(row)))
        for _ in range(k):
            largest = max(row[j] for j in left)
            near = [j for j in left if largest - row[j] <= 2 * epsilon * max(abs(row[j]), largest)]
            if not near:  # of NaN
                near = left
            i = next((j for j in left if row[j] == largest), left[0])
            weights[i] = 1 / sum(np.exp(row[j] - row[i]) for j in near)
            left.remove(i)
    return w


def top_p(x: Array, p: Parameters, k: int = 2, normalize: bool = True, **_: Any) -> Array:
    """k steers training only."""
    o = linear(x, p, "gate")
    if normalize:
        centred = o - o.mean(-1, keepdims=True)
        o = p["scale"] * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    g = softmax(o)
    w = np.zeros_like(g)
    for row, weights in zip(g, w, strict=True):
        if np.isnan(row).any():
            weights[:] = np.nan
            continue
        kept: list[int] = []
        while not kept or (row[kept].sum() < p["p"] and len(kept) < len(row)):
            kept.append(max((i for i in range(len(row)) if i not in kept), key=lambda i: row[i]))
        weights[kept] = row[kept] / row[kept].sum()
    return w


def expert_threshold(x: Array, p: Parameters, k: int = 2) -> Array:
    """k steers training only."""
    o = linear(x, p, "gate")
    c = p["cutoff_E"] / p["weight"] if p["weight"] > 0 else p["cutoff_E"]
    w = np.zeros_like(o)
    for row, weights in zip(o, w, strict=True):
        passed = [i for i in range(len(row)) if not row[i] < c[i]]
        if not passed:
            passed = [max(range(len(row)), key=lambda i: row[i] - c[i])]
        for i in passed:
            weights[i] = 0.5 + 0.5 * np.tanh(0.5 * row[i])
    return w


def kmeans(x: Array, p: Parameters, k: int = 2) -> Array:
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    m = p["mean_ED"] / np.linalg.norm(p["mean_ED"], axis=-1, keepdims=True)
    cosines = (x / np.where(length == 0, 1, length)) @ m.T
    w = np.where(top(cosines, k), 1 / k, 0.0)
    return np.where(np.isnan(cosines), np.nan, w)


INFERENCE: dict[str, Callable[..., Array]] = {
    "moesart": moesart,
    "pps": pps,
    "softmax": dense_softmax,
    "topk": topk,
    "vmoe": kept_softmax,
    "smoe": kept_softmax,
    "expert_choice": expert_choice,
    "xmoe": xmoe,
    "dselect_k": dselect_k,
    "comet": comet,
    "base": base,
    "sinkhorn_base": sinkhorn_base,
    "sparse_ot": sparse_ot,
    "soft_topk": soft_topk,
    "cgc": cgc,
    "default_moe": kept_softmax,
    "loss_free": loss_free,
    "relu": relu,
    "sparsemixer": sparsemixer,
    "top_p": top_p,
    "expert_threshold": expert_threshold,
    "kmeans": kmeans,
}
"""All but `hash`, which reads a table, and `thor`, `shared_bottom`, `single_task`: they average."""
