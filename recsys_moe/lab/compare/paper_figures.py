"""The paper's own results for recommenders, to stand beside ours (Tables 1 and S4).

Mean and standard error over 50 runs of the tuned configuration.
"""

from __future__ import annotations

from recsys_moe.lab.compare.significance import Spread
from recsys_moe.schema import Schema

RUNS = 50
ROWS = {
    "movielens-1m": {"train": 1_574_602, "val": 224_944, "test": 199_950},
    "books": {"train": 389_706, "val": 83_509, "test": 83_509},
}
"""Rows per split of the data sets as the paper used them."""

# data, weights of watch and rating, router, then mean and standard error of: loss and AUC as the
# paper prints them (times 100), MSE
_TABLE = """
movielens-1m 0.1 0.9 softmax       73.96 .02 86.02 .03 .7701 .0002
movielens-1m 0.1 0.9 topk          77.72 .06 86.08 .06 .8121 .0007
movielens-1m 0.1 0.9 vmoe          75.67 .04 86.79 .03 .7904 .0005
movielens-1m 0.1 0.9 smoe          79.47 .07 85.36 .06 .8303 .0008
movielens-1m 0.1 0.9 expert_choice 81.14 .04 84.65 .05 .8477 .0005
movielens-1m 0.1 0.9 xmoe          77.59 .12 86.86 .08 .8119 .0013
movielens-1m 0.1 0.9 moesart       73.60 .02 87.33 .03 .7684 .0002
movielens-1m 0.1 0.9 dselect_k     73.81 .03 87.79 .03 .7715 .0003
movielens-1m 0.1 0.9 comet         74.19 .03 87.67 .07 .7756 .0004
movielens-1m 0.9 0.1 softmax       41.93 .02 91.06 .01 .7569 .0002
movielens-1m 0.9 0.1 topk          41.90 .02 91.17 .01 .7616 .0004
movielens-1m 0.9 0.1 vmoe          42.11 .03 91.16 .01 .7605 .0006
movielens-1m 0.9 0.1 smoe          43.08 .06 90.86 .03 .7917 .0009
movielens-1m 0.9 0.1 expert_choice 44.94 .04 89.88 .02 .8216 .0006
movielens-1m 0.9 0.1 xmoe          44.66 .04 89.80 .02 .7908 .0006
movielens-1m 0.9 0.1 moesart       40.89 .02 91.61 .01 .7430 .0003
movielens-1m 0.9 0.1 dselect_k     41.40 .03 91.44 .01 .7582 .0005
movielens-1m 0.9 0.1 comet         41.25 .04 91.45 .02 .7563 .0008
books        0.1 0.9 softmax       248.96 .11 55.31 .08 2.697 .001
books        0.1 0.9 topk          246.97 .11 56.64 .08 2.675 .001
books        0.1 0.9 vmoe          253.21 .15 55.11 .06 2.744 .002
books        0.1 0.9 smoe          249.88 .13 56.68 .09 2.707 .001
books        0.1 0.9 expert_choice 314.54 .49 56.22 .10 3.426 .005
books        0.1 0.9 xmoe          264.16 .25 56.18 .10 2.866 .003
books        0.1 0.9 moesart       242.47 .09 64.99 .13 2.626 .001
books        0.1 0.9 dselect_k     241.64 .14 59.05 .14 2.615 .002
books        0.1 0.9 comet         241.13 .11 66.13 .09 2.612 .001
books        0.9 0.1 softmax       74.69 .04 77.48 .04 2.697 .002
books        0.9 0.1 topk          74.63 .03 77.42 .02 2.683 .002
books        0.9 0.1 vmoe          75.96 .04 76.89 .05 2.768 .003
books        0.9 0.1 smoe          75.30 .05 77.13 .05 2.718 .002
books        0.9 0.1 expert_choice 82.83 .06 76.75 .03 3.403 .009
books        0.9 0.1 xmoe          78.25 .05 75.48 .05 2.890 .003
books        0.9 0.1 moesart       73.68 .02 78.03 .03 2.641 .003
books        0.9 0.1 dselect_k     74.22 .03 77.61 .02 2.632 .002
books        0.9 0.1 comet         74.29 .03 77.30 .02 2.636 .002
"""


def paper_figures(
    schema: Schema, weights: dict[str, float], split: str
) -> dict[str, dict[str, Spread]]:
    """`loss`, `watch.auc` and `rating.mse` by router, in our units.

    Empty unless data, protocol, row counts, task weights and split are the paper's.
    """
    return figures_of(paper_data(schema, split), weights)


def paper_data(schema: Schema, split: str) -> str:
    """The name of the data, empty unless they, protocol, row counts and split are the paper's."""
    known = ROWS.get(schema.name)
    is_papers = schema.protocol == "paper" and known is not None and schema.rows == known
    return schema.name if is_papers and split == "test" else ""


def figures_of(data: str, weights: dict[str, float]) -> dict[str, dict[str, Spread]]:
    """As `paper_figures`, of what `paper_data` says."""
    wanted = [data, *(f"{weights.get(task, -1):g}" for task in ("watch", "rating"))]
    lines = [line.split() for line in _TABLE.split("\n") if line]
    return {line[3]: _figures(line[4:]) for line in lines if line[:3] == wanted}


def _figures(printed: list[str]) -> dict[str, Spread]:
    loss, loss_error, auc, auc_error, mse, mse_error = map(float, printed)
    return {
        "loss": Spread(loss / 100, loss_error / 100, RUNS),
        "watch.auc": Spread(auc / 100, auc_error / 100, RUNS),
        "rating.mse": Spread(mse, mse_error, RUNS),
    }
