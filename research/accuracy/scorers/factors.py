"""implicit's ALS and BPR on the watched pairs."""

from __future__ import annotations

from typing import Any

from research.accuracy.rows import Fitted, Scores, TrainingRows
from research.accuracy.scorers.linear import positive_matrix


def als(rows: TrainingRows, settings: dict[str, Any], seed: int) -> Fitted:
    """Alternating least squares with confidence 1 + alpha at a watched pair (Hu et al. 2008)."""
    from implicit.als import AlternatingLeastSquares

    return _fitted(AlternatingLeastSquares(**settings, random_state=seed, num_threads=1), rows)


def bpr(rows: TrainingRows, settings: dict[str, Any], seed: int) -> Fitted:
    """Bayesian personalised ranking, negatives of its own drawing (Rendle et al. 2009)."""
    from implicit.bpr import BayesianPersonalizedRanking

    return _fitted(BayesianPersonalizedRanking(**settings, random_state=seed, num_threads=1), rows)


def _fitted(model: Any, rows: TrainingRows) -> Fitted:
    model.fit(positive_matrix(rows), show_progress=False)
    return lambda: Scores(watch=model.user_factors @ model.item_factors.T)
