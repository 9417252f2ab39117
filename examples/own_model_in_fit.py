"""A custom model: a matrix factorisation per task, trained, evaluated, exported and served.

    recsys-moe fit --data data/demo --out runs/factors \\
        --set model.name=examples.own_model_in_fit:Factors --set model.rank=16
    recsys-moe recommend runs/factors --user 1
    python examples/own_model_in_fit.py data/demo runs/factors

The last line does the first two from Python. Vectors of users and items, with their features and
bags, user and item biases, training, ranking, cold start, export and service come with the class
`Recommender`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn

from recsys_moe import ModelConfig, ModelShape, Output, Predictor, Recommender, Request, fit


class Factors(Recommender):
    """logit_t = sum_r s_tr u_r v_r + w_t [u; v]."""

    class Config(ModelConfig):  # which has `embedding_dim`, `features`, `biases` and others
        name: str = "examples.own_model_in_fit:Factors"
        rank: int = Field(default=32, ge=1)
        """Dimensions of the two vectors that are multiplied: the first ones."""

    def __init__(self, config: Config, shape: ModelShape) -> None:
        super().__init__(config, shape)
        rank = min(config.rank, config.embedding_dim)
        self.scale_TR = nn.Parameter(torch.ones(shape.num_logits, rank))
        self.alone = nn.Linear(2 * config.embedding_dim, shape.num_logits)

    def score(self, user_BD: Tensor, item_BD: Tensor, request: Request) -> Output:
        rank = self.scale_TR.shape[1]
        products_BR = user_BD[:, :rank] * item_BD[:, :rank]
        both_BD = torch.cat([user_BD, item_BD], dim=-1)
        return Output(products_BR @ self.scale_TR.t() + self.alone(both_BD))


def main(data: str, out: str) -> list[str]:
    """Train on the prepared folder `data`; the titles or ids of the best items of a user."""
    name = "examples.own_model_in_fit:Factors"
    fit(data, out, {"model": {"name": name, "rank": 16}, "trainer": {"max_epochs": 3}})
    predictor = Predictor.load(Path(out))
    user = predictor.users.ids[0].as_py()
    [best] = predictor.recommend([user], k=5, exclude_seen=True)
    for one in best:
        print(one.rank, one.item, one.title, one.scores)
    return [str(one.title or one.item) for one in best]


if __name__ == "__main__":
    main(*sys.argv[1:3])
