"""MultiTaskMoE, the default model: how it is ranked, pruned and explained."""

from __future__ import annotations

import torch

from recsys_moe.model.draws import Draws
from recsys_moe.model.expert_shares import Explanation, expert_shares
from recsys_moe.model.moe_network import MoENetwork
from recsys_moe.model.moe_ranker import MoERanker
from recsys_moe.model.ranker import Ranker
from recsys_moe.model.request import Request
from recsys_moe.model.tower_pruning import with_pruned_towers


class MultiTaskMoE(MoENetwork):
    """Embeddings -> mixture of experts -> one tower and head per task -> logits."""

    def for_inference(self) -> MultiTaskMoE:
        """With towers without units that cannot change a score."""
        return with_pruned_towers(self)

    def prepare_export(self) -> None:
        """All experts are computed: the sparse path loops over experts."""
        self.moe.dispatch = "dense"

    def ranker(self, draws: Draws, whole_rows: int) -> Ranker:
        return MoERanker(self, draws, whole_rows)

    @torch.inference_mode()
    def expert_shares(self, request: Request) -> Explanation:
        scale_T = [1.0] * len(self.towers)
        if self.biases is not None:
            scales = zip(self.shape.places, self.biases.scale_T.tolist(), strict=True)
            scale_T = [scale for (_, output), scale in scales if output == 0]
        vectors = self.encode(request), self.known(request).user
        return expert_shares(*vectors, self.moe, towers=self.towers, scale_T=scale_T)
