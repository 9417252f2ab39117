"""A custom router: k experts with the largest cosine, a margin instead of noise.

    python examples/own_router.py
    recsys-moe fit --data data/demo --router examples.own_router:CosineRouter --out runs/cosine

The second line trains it from the command line, with its settings checked and explained like those
of any router: `--set model.router.scale=4`, `recsys-moe config show --router ...`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from recsys_moe import Experts, MoE, Router, Routing, router
from recsys_moe.routers import KConfig, RouterShape


class CosineRouter(Router):
    """Weights are a softmax over the k largest cosines of a row and the experts' directions."""

    class Config(KConfig):  # which has `k`, 1..num_experts
        name: str = "examples.own_router:CosineRouter"
        scale: float = Field(default=8.0, gt=0)
        """Factor on the cosines: the larger, the more the best expert counts."""

    summary = "k experts by cosine"

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        self.direction_ED = nn.Parameter(torch.randn(shape.num_experts, shape.input_dim))

    @property
    def max_selected(self) -> int:
        """The promise of sparsity: the layer computes no more than this per row and task."""
        return self.config.k

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        x_BD, direction_ED = F.normalize(x_BD.float(), dim=-1), F.normalize(self.direction_ED)
        logits_BE = self.config.scale * x_BD @ direction_ED.T
        chosen_BK = logits_BE.topk(self.config.k, -1).indices
        selected_BE = torch.zeros_like(logits_BE, dtype=torch.bool).scatter(-1, chosen_BK, True)
        weights_BE = logits_BE.masked_fill(~selected_BE, -torch.inf).softmax(-1)
        return Routing(weights_BE, selected_BE, logits_BE.softmax(-1), logits_BE)


def main() -> Routing:
    """Route eight rows and print their experts and weights."""
    torch.manual_seed(0)
    one = router("examples.own_router:CosineRouter", input_dim=16, num_experts=6, k=2)
    layer = MoE(Experts(6, 16, 8), [one])
    mixed_BTH, (routing,) = layer(torch.randn(8, 16))
    print(f"mixtures {tuple(mixed_BTH.shape)}")
    for row, weights in enumerate(routing.weights_BE.tolist()):
        print(row, {expert: round(weight, 2) for expert, weight in enumerate(weights) if weight})
    return routing


if __name__ == "__main__":
    main()
