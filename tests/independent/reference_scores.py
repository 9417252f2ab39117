"""The layer, losses, penalties, AUC and rankings in numpy float64, from docs/ alone.

Nothing of the package is imported. Axes: B batch, T tasks, E experts, D input width, H hidden.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def mixture(x_BD: Array, w_BE: Array, kernel_EDH: Array, bias_EH: Array) -> Array:
    """y_b = sum_i w_bi relu(x_b W_i + b_i), over the experts with a weight. (B, H)"""
    y_BH = np.zeros((len(x_BD), kernel_EDH.shape[-1]))
    for b, i in itertools.product(range(len(x_BD)), range(len(kernel_EDH))):
        if w_BE[b, i]:
            y_BH[b] += w_BE[b, i] * np.maximum(x_BD[b] @ kernel_EDH[i] + bias_EH[i], 0)
    return y_BH


def binary_loss(z: float, y: float) -> float:
    """-y log p - (1 - y) log(1 - p) with p = 1 / (1 + e^-z)."""
    return max(z, 0.0) - y * z + math.log1p(math.exp(-abs(z)))


def squared_error(z: float, y: float) -> float:
    return (z - y) ** 2


def mean_loss(kind: str, z_B: Array, y_B: Array) -> float:
    """Over the rows that have a label; 0 where none has."""
    one = binary_loss if kind == "binary" else squared_error
    losses = [one(z, y) for z, y in zip(z_B, y_B, strict=True) if not math.isnan(y)]
    return sum(losses) / len(losses) if losses else 0.0


def auc(z_B: Array, y_B: Array) -> float:
    """Share of the pairs of a positive and a negative that are in order; ties count half."""
    pairs = list(itertools.product(z_B[y_B == 1], z_B[y_B == 0]))
    return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)


def calibration_error(p_B: Array, y_B: Array, bins: int = 15) -> float:
    """Bins of equal width: |mean p - share of positives|, weighted by their rows."""
    place_B = np.minimum((p_B * bins).astype(int), bins - 1)
    gaps = [abs(float((p_B - y_B)[place_B == place].sum())) for place in range(bins)]
    return sum(gaps) / len(p_B)


def ranking(scores_N: Array, k: int) -> list[int]:
    """Indices of the k best, the lower one first among equals."""
    return sorted(range(len(scores_N)), key=lambda n: (-scores_N[n], n))[:k]


# --- penalties


def trimmed_lasso(g_BE: Array, k: int) -> float:
    return float(np.sort(g_BE, axis=-1)[:, : g_BE.shape[1] - k].sum(-1).mean())


def switch(g_BE: Array, r_BE: Array) -> float:
    """n sum_i f_i P_i; f: share of all selections, r: how often each was drawn."""
    f_E = r_BE.sum(0) / r_BE.sum()
    return float(g_BE.shape[1] * (f_E * g_BE.mean(0)).sum())


def squared_variation(v_E: Array) -> float:
    return float(v_E.var() / v_E.mean() ** 2)


def importance(w_BE: Array) -> float:
    return squared_variation(w_BE.sum(0))


def phi(t: float) -> float:
    return math.erfc(-t / math.sqrt(2)) / 2


def load(clean_BE: Array, noisy_BE: Array, k: int) -> float:
    """Phi(n (clean o_i - bar)), bar the k-th largest noisy logit of the row."""
    n = clean_BE.shape[1]
    bar_B1 = -np.sort(-noisy_BE, axis=-1)[:, k - 1 : k]
    return squared_variation(np.vectorize(phi)(n * (clean_BE - bar_B1)).sum(0))


def noisy_load(clean_BE: Array, noisy_BE: Array, scale_BE: Array, k: int) -> float:
    """Phi((clean o_i - bar) / scale_i), bar the k-th largest noisy logit of the other experts."""
    chance_BE = np.zeros_like(clean_BE)
    for b, i in itertools.product(*map(range, clean_BE.shape)):
        bar = -np.sort(-np.delete(noisy_BE[b], i))[k - 1]
        chance_BE[b, i] = phi((clean_BE[b, i] - bar) / scale_BE[b, i])
    return squared_variation(chance_BE.sum(0))


def z_loss(o_BE: Array) -> float:
    largest_B1 = o_BE.max(-1, keepdims=True)
    log_sum_B = np.log(np.exp(o_BE - largest_B1).sum(-1)) + largest_B1[:, 0]
    return float((log_sum_B**2).mean())
