"""myFM fitted up to the cut of MovieLens-1M, judged on the ratings after it.

    make accuracy-venv && build/accuracy-venv/bin/pip install pyarrow
    build/accuracy-venv/bin/python -m research.time_peers.fm --ml-1m DIR --seed 0

Settings are those that trials on MovieLens-1M chose: research/results/ml-1m-peers.csv. Axes: N
ratings, U users, I items.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse

from research.accuracy.scorers.ratings import with_id
from research.time_peers.log import CORE, ML_1M_CUT, Log, read

RANK, ITERATIONS = 32, 300


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ml-1m", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="user, item and squared error of each rating")
    options = parser.parse_args(argv)
    log, begun = read(options.ml_1m, core=CORE), time.process_time()
    later_N = log.after(ML_1M_CUT)
    train, test = log.taken(~later_N), log.taken(later_N)
    error_N = (predicted(train, test, log, options.seed) - test.rating) ** 2
    new_N = ~np.isin(test.user, train.user)
    minutes = (time.process_time() - begun) / 60
    print(
        f"MSE {error_N.mean():.4f} ({error_N[new_N].mean():.4f}), {len(error_N)} ratings, ", end=""
    )
    print(f"seed {options.seed}, {minutes:.1f} minutes")
    if options.save:
        np.savez(options.save, user=test.user, item=test.item, error=error_N)


def predicted(train: Log, test: Log, log: Log, seed: int) -> np.ndarray:
    """(N,) ratings of `test` in 1 to 5."""
    from myfm import MyFMGibbsRegressor, RelationBlock

    seen_UI = scipy.sparse.csr_matrix(
        (np.ones(len(train.user)), (train.user, train.item)), (log.users, log.items)
    )
    blocks = [with_id(seen_UI), with_id(seen_UI.T)]
    model = MyFMGibbsRegressor(rank=RANK, random_seed=seed)
    model.fit(
        None,
        train.rating,
        X_rel=[RelationBlock(train.user, blocks[0]), RelationBlock(train.item, blocks[1])],
        n_iter=ITERATIONS,
        n_kept_samples=ITERATIONS * 2 // 3,
        group_shapes=[log.users, log.items, log.items, log.users],
    )
    asked = [RelationBlock(test.user, blocks[0]), RelationBlock(test.item, blocks[1])]
    return np.clip(model.predict(None, asked), 1, 5)


if __name__ == "__main__":
    main()
