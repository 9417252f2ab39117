"""The peers: who fits them, with which settings they are tried, and by what one is chosen.

Figures are of the validation split; the rule is the same for all: one session, a handful of
settings around the library's defaults or what its examples use, the best one, test read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LOWER_IS_BETTER = ("mse", "loss", "bce")
EXAMPLE_MMOE = {"embedding": 4, "experts": 8, "expert": 16, "tower": 8}
EXAMPLE_PLE = {"embedding": 4, "specific": 2, "shared": 1, "expert": 16, "tower": 8}
WIDER = {"embedding": 32, "expert": 64, "tower": 32, "dropout": 0.2}
STOPPING = {"epochs": 20, "patience": 3}
OUR_WEIGHTS = [0.9, 0.1]
"""Of watching and rating in the loss that chooses; the library's trainer has no fixed weights."""


@dataclass(frozen=True)
class Peer:
    """`fit` is `module:function` of `research.accuracy.scorers`, called with the training rows,
    one of the settings and a seed."""

    title: str
    fit: str
    settings: tuple[dict[str, Any], ...]
    by: str
    """The figure on the validation split that chooses."""
    random: bool = True
    """Does a seed change anything?"""
    probabilities: bool = False
    """Are its watch scores logits of probabilities?"""
    packages: tuple[str, ...] = ("numpy", "scipy")
    """Whose versions are noted; the last one must be there, else the peer is left out."""
    foreign: bool = False
    """Does it need the environment of the peers?"""


def _named(sizes: dict[str, Any], missing: str, **more: Any) -> dict[str, Any]:
    return {"sizes": sizes, "missing": missing, **STOPPING, **more}


PEERS = {
    "popularity": Peer("popularity", "linear:popularity", ({},), by="ndcg", random=False),
    "ease": Peer(
        "EASE",
        "linear:ease",
        tuple({"l2": l2} for l2 in (30, 100, 200, 500, 1000, 2000, 4000)),
        by="ndcg",
        random=False,
    ),
    "als": Peer(
        "implicit ALS",
        "factors:als",
        (
            {"factors": 100, "regularization": 0.01, "alpha": 1.0, "iterations": 15},
            {"factors": 32, "regularization": 0.01, "alpha": 1.0, "iterations": 15},
            {"factors": 32, "regularization": 10.0, "alpha": 1.0, "iterations": 15},
            {"factors": 64, "regularization": 10.0, "alpha": 1.0, "iterations": 15},
            {"factors": 64, "regularization": 10.0, "alpha": 5.0, "iterations": 15},
            {"factors": 64, "regularization": 50.0, "alpha": 5.0, "iterations": 15},
            {"factors": 32, "regularization": 50.0, "alpha": 5.0, "iterations": 15},
            {"factors": 16, "regularization": 10.0, "alpha": 1.0, "iterations": 15},
            {"factors": 64, "regularization": 100.0, "alpha": 5.0, "iterations": 15},
            {"factors": 128, "regularization": 100.0, "alpha": 5.0, "iterations": 15},
            {"factors": 128, "regularization": 200.0, "alpha": 10.0, "iterations": 15},
            {"factors": 128, "regularization": 50.0, "alpha": 5.0, "iterations": 15},
        ),
        by="ndcg",
        packages=("numpy", "scipy", "implicit"),
        foreign=True,
    ),
    "bpr": Peer(
        "implicit BPR",
        "factors:bpr",
        (
            {"factors": 100, "learning_rate": 0.01, "regularization": 0.01, "iterations": 100},
            {"factors": 100, "learning_rate": 0.05, "regularization": 0.01, "iterations": 100},
            {"factors": 100, "learning_rate": 0.05, "regularization": 0.05, "iterations": 100},
            {"factors": 100, "learning_rate": 0.05, "regularization": 0.1, "iterations": 100},
            {"factors": 32, "learning_rate": 0.05, "regularization": 0.05, "iterations": 200},
            {"factors": 32, "learning_rate": 0.01, "regularization": 0.01, "iterations": 200},
            {"factors": 32, "learning_rate": 0.01, "regularization": 0.05, "iterations": 400},
            {"factors": 16, "learning_rate": 0.02, "regularization": 0.02, "iterations": 200},
        ),
        by="ndcg",
        packages=("numpy", "scipy", "implicit"),
        foreign=True,
    ),
    "svdpp": Peer(
        "Surprise SVD++",
        "ratings:svdpp",
        (
            {"n_factors": 20, "n_epochs": 20, "lr_all": 0.007, "reg_all": 0.02},
            {"n_factors": 20, "n_epochs": 40, "lr_all": 0.007, "reg_all": 0.05},
            {"n_factors": 20, "n_epochs": 40, "lr_all": 0.007, "reg_all": 0.1},
            {"n_factors": 50, "n_epochs": 60, "lr_all": 0.007, "reg_all": 0.1},
            {"n_factors": 100, "n_epochs": 60, "lr_all": 0.007, "reg_all": 0.1},
            {"n_factors": 50, "n_epochs": 90, "lr_all": 0.007, "reg_all": 0.15},
        ),
        by="mse",
        packages=("numpy", "scikit-surprise"),
        foreign=True,
    ),
    "myfm": Peer(
        "myFM",
        "ratings:myfm",
        (
            {"rank": 8, "iterations": 300, "history": False},
            {"rank": 16, "iterations": 300, "history": False},
            {"rank": 8, "iterations": 300, "history": True},
            {"rank": 16, "iterations": 300, "history": True},
            {"rank": 32, "iterations": 300, "history": True},
            {"rank": 64, "iterations": 300, "history": True},
        ),
        by="mse",
        packages=("numpy", "scipy", "myfm"),
        foreign=True,
    ),
    "mmoe": Peer(
        "torch-rechub MMoE",
        "rechub:mmoe",
        (
            _named(EXAMPLE_MMOE, "mean"),
            _named(EXAMPLE_MMOE, "masked"),
            _named({**WIDER, "experts": 8}, "masked"),
            _named({**WIDER, "experts": 8}, "masked", weights=OUR_WEIGHTS),
        ),
        by="loss",
        probabilities=True,
        packages=("torch", "torch-rechub"),
        foreign=True,
    ),
    "ple": Peer(
        "torch-rechub PLE",
        "rechub:ple",
        (
            _named(EXAMPLE_PLE, "mean"),
            _named(EXAMPLE_PLE, "masked"),
            _named({**WIDER, "specific": 4, "shared": 4}, "masked"),
            _named({**WIDER, "specific": 4, "shared": 4}, "masked", weights=OUR_WEIGHTS),
        ),
        by="loss",
        probabilities=True,
        packages=("torch", "torch-rechub"),
        foreign=True,
    ),
}
