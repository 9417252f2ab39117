"""Popularity and EASE: numpy and scipy alone. Axes: U users, I items."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from research.accuracy.rows import Fitted, Scores, TrainingRows


def positive_matrix(rows: TrainingRows) -> scipy.sparse.csr_matrix:
    """1 where a user watched an item in training, float32 (U, I)."""
    user_N, item_N = rows.train.watched()
    ones_N = np.ones(len(user_N), np.float32)
    matrix = scipy.sparse.csr_matrix((ones_N, (user_N, item_N)), shape=(rows.users, rows.items))
    matrix.data[:] = 1  # a pair that stands twice was summed
    return matrix


def popularity(rows: TrainingRows, settings: dict[str, Any], seed: int) -> Fitted:
    """The number of training users who watched an item, the same for everybody."""
    watchers_I = np.asarray(positive_matrix(rows).sum(0), np.float32).ravel()
    return lambda: Scores(watch=np.broadcast_to(watchers_I, (rows.users, rows.items)))


def ease(rows: TrainingRows, settings: dict[str, Any], seed: int) -> Fitted:
    """X B, where B minimises |X - X B|^2 + l2 |B|^2 with a diagonal of 0.

    In closed form B_ij = -P_ij / P_jj with P = (X'X + l2)^-1 (Steck 2019, "Embarrassingly shallow
    autoencoders for sparse data", WWW, equation 8).
    """
    seen_UI = positive_matrix(rows).astype(np.float64)
    gram_II = (seen_UI.T @ seen_UI).toarray()
    gram_II[np.diag_indices_from(gram_II)] += settings["l2"]
    inverse_II = scipy.linalg.inv(gram_II, overwrite_a=True, check_finite=False)
    weights_II = -inverse_II / np.diag(inverse_II)
    np.fill_diagonal(weights_II, 0)
    return lambda: Scores(watch=(seen_UI @ weights_II).astype(np.float32))
