"""Peers that predict ratings: Surprise's SVD++ and myFM. Axes: U users, I items, F factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from research.accuracy.rows import Fitted, Part, Scores, TrainingRows
from research.accuracy.scorers.linear import positive_matrix


def svdpp(rows: TrainingRows, settings: dict[str, Any], seed: int) -> Fitted:
    """SVD++ (Koren 2008), clipped to the range of the ratings as `predict` of Surprise does."""
    import pandas
    from surprise import Dataset, Reader, SVDpp

    rated = rows.train.rated()
    low, high = float(rated.rating.min()), float(rated.rating.max())
    frame = pandas.DataFrame({"user": rated.user, "item": rated.item, "rating": rated.rating})
    trainset = Dataset.load_from_df(frame, Reader(rating_scale=(low, high))).build_full_trainset()
    model = SVDpp(**settings, random_state=seed, cache_ratings=True)
    model.fit(trainset)

    def scores() -> Scores:
        rating_UI = np.clip(_of_svdpp(model, rows.users, rows.items), low, high)
        some = list(zip(*(ids[:50].tolist() for ids in (rated.user, rated.item)), strict=True))
        said = [model.predict(user, item).est for user, item in some]
        np.testing.assert_allclose([rating_UI[pair] for pair in some], said, atol=1e-9)
        return Scores(rating=rating_UI.astype(np.float32))

    return scores


def _of_svdpp(model: Any, users: int, items: int) -> np.ndarray:
    """All that its `estimate` gives, at once; an id without a rating has biases and factors of 0:
    mean + b_u + b_i + q_i (p_u + sum of y_j over the user's items / sqrt of their number)."""
    known = model.trainset
    user_bias_U, user_UF = np.zeros(users), np.zeros((users, model.n_factors))
    item_bias_I, item_IF = np.zeros(items), np.zeros((items, model.n_factors))
    for inner in known.all_users():
        rated = [item for item, _ in known.ur[inner]]
        user = known.to_raw_uid(inner)
        user_bias_U[user] = model.bu[inner]
        user_UF[user] = model.pu[inner] + model.yj[rated].sum(0) / np.sqrt(len(rated))
    for inner in known.all_items():
        item_bias_I[known.to_raw_iid(inner)] = model.bi[inner]
        item_IF[known.to_raw_iid(inner)] = model.qi[inner]
    bias_UI = known.global_mean + user_bias_U[:, None] + item_bias_I
    return np.asarray(bias_UI + user_UF @ item_IF.T)


def myfm(rows: TrainingRows, settings: dict[str, Any], seed: int) -> Fitted:
    """Bayesian factorization machine by Gibbs sampling, of the ids or, with `history`, also of
    what the user watched and of who watched the item (Rendle, Zhang and Koren 2019, section 4)."""
    from myfm import MyFMGibbsRegressor, RelationBlock

    rated = rows.train.rated()
    user_UX, item_IX = _blocks(rows, settings["history"])
    blocks = [RelationBlock(rated.user, user_UX), RelationBlock(rated.item, item_IX)]
    groups = _group_shapes(rows, settings["history"])
    model = MyFMGibbsRegressor(rank=settings["rank"], random_seed=seed)
    iterations = settings["iterations"]
    model.fit(
        None,
        rated.rating.astype(np.float64),
        X_rel=blocks,
        n_iter=iterations,
        n_kept_samples=iterations * 2 // 3,
        group_shapes=groups,
    )

    def scores() -> Scores:
        rating_UI = _of_samples(model.predictor_.samples, user_UX, item_IX)
        _check(model, rating_UI, rated, (user_UX, item_IX))
        return Scores(rating=rating_UI.astype(np.float32))

    return scores


def _blocks(rows: TrainingRows, history: bool) -> tuple[scipy.sparse.csr_matrix, ...]:
    """Inputs of each user and of each item: one-hot id, beside it the normalised history."""
    if not history:
        return tuple(scipy.sparse.identity(n, format="csr") for n in (rows.users, rows.items))
    seen_UI = positive_matrix(rows).astype(np.float64)
    return with_id(seen_UI), with_id(seen_UI.T)


def with_id(seen_NX: scipy.sparse.spmatrix) -> scipy.sparse.csr_matrix:
    """One-hot ids beside the normalised rows of `seen_NX`."""
    identity = scipy.sparse.identity(seen_NX.shape[0], format="csr")
    return scipy.sparse.hstack([identity, _unit_rows(seen_NX)], format="csr")


def _unit_rows(matrix: scipy.sparse.spmatrix) -> scipy.sparse.csr_matrix:
    """Divided by the square root of each row's number of entries."""
    counts = np.maximum(np.asarray(matrix.sum(1)).ravel(), 1)
    return scipy.sparse.diags(1 / np.sqrt(counts)) @ matrix.tocsr()


def _group_shapes(rows: TrainingRows, history: bool) -> list[int]:
    """Columns that share a prior."""
    sizes = (rows.users, rows.items, rows.items, rows.users)
    return list(sizes) if history else [rows.users, rows.items]


def _of_samples(
    samples: list[Any], user_UX: scipy.sparse.csr_matrix, item_IX: scipy.sparse.csr_matrix
) -> np.ndarray:
    """The mean over the samples of their prediction for every pair, from per-entity vectors:
    an FM of two inputs is own(user) + own(item) + <V' user, V' item>."""
    width = user_UX.shape[1]
    user_U, item_I = np.zeros(user_UX.shape[0]), np.zeros(item_IX.shape[0])
    pair_UI = np.zeros((len(user_U), len(item_I)))
    for sample in samples:
        entities = ((user_UX, slice(None, width)), (item_IX, slice(width, None)))
        (own_U, user_UF), (own_I, item_IF) = (_side(sample, *entity) for entity in entities)
        user_U += own_U + sample.w0
        item_I += own_I
        pair_UI += user_UF @ item_IF.T
    return (pair_UI + user_U[:, None] + item_I) / len(samples)


def _side(
    sample: Any, inputs: scipy.sparse.csr_matrix, columns: slice
) -> tuple[np.ndarray, np.ndarray]:
    """What one entity contributes by itself (N,), and its vectors (N, F)."""
    linear_X, factors_XF = sample.w[columns], sample.V[columns]
    vector_NF = inputs @ factors_XF
    squares_NF = inputs.multiply(inputs) @ factors_XF**2
    return inputs @ linear_X + (vector_NF**2 - squares_NF).sum(1) / 2, vector_NF


def _check(model: Any, rating_UI: np.ndarray, rated: Part, inputs: tuple[Any, Any]) -> None:
    """The short cut is what myFM itself predicts, on some training rows."""
    from myfm import RelationBlock

    user, item = rated.user[:50], rated.item[:50]
    blocks = [RelationBlock(user, inputs[0]), RelationBlock(item, inputs[1])]
    np.testing.assert_allclose(rating_UI[user, item], model.predict(None, blocks), atol=1e-6)
