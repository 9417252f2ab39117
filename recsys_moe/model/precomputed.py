"""Logits of many pairs with precomputed first layers of the experts.

An expert's first layer is linear in x = [u; i], so x W_e + b_e = (u V_e + b_e) + i U_e with W_e =
[V_e; U_e]. The two halves of all users and items are computed once, when a pair first visits the
expert. Routers and towers see what they see in a forward pass, in the same batches. Axes: B pairs,
T tasks, E experts, R users and items (each with one more for the OOV id), D input width, H expert
width, N entries: one per (pair, task, chosen expert).
"""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.model.moe_network import MoENetwork
from recsys_moe.model.output import Output
from recsys_moe.model.pair_plan import positions, starts
from recsys_moe.model.request import Request

MAX_MB = 512.0
"""Memory for the precomputed halves."""
ENTRIES_AT_ONCE = 1 << 12
"""Outputs of experts computed at a time: of 256 numbers they take 4 MB."""


class Precomputed:
    """The precomputed halves of a model. Thread-safe."""

    def __init__(self, model: MoENetwork, max_mb: float = MAX_MB) -> None:
        self.model = model
        self._tables = model.user_embedding.weight, model.item_embedding.weight
        experts, _, width = model.moe.experts.kernel_EDH.shape
        self._size = torch.Size([experts, sum(map(len, self._tables)), width])
        is_plain = model.encoders is None and model.trend is None
        self.fits = self._size.numel() * 4 <= max_mb * 2**20 and is_plain
        """May the table be made, and do the tables hold whole vectors? Else `logits` must not be
        called."""
        self._precomputed_ERH = torch.empty(0, *self._size[1:])
        self._is_filled = [False] * experts
        self._growing = threading.Lock()

    @torch.inference_mode()
    def logits(self, request: Request) -> Tensor:
        """(B, T) of known or unseen ids, as of `Recommender.forward`."""
        user_B, item_B, x_BD = request.user, request.item, self.model.encode(request)
        weights_BTE, selected_BTE, routings = self.model.moe.route(x_BD, user_B)
        for expert in selected_BTE.any(1).any(0).nonzero()[:, 0].tolist():
            self._fill(expert)
        most = max(1, int(selected_BTE.sum()) // max(1, len(user_B)))
        parts = [
            part.split(max(1, ENTRIES_AT_ONCE // most))
            for part in (user_B, item_B, weights_BTE, selected_BTE)
        ]
        mixed_BTH = torch.cat([self._mixed(*part) for part in zip(*parts, strict=True)])
        if self.model.moe.output_means is not None:
            mixed_BTH = self.model.moe.output_means(mixed_BTH, routings)
        output = Output(self.model.logits(mixed_BTH, x_BD))
        return self.model.with_biases(output, request).logits_BT

    def _fill(self, expert: int) -> None:
        with self._growing:
            if self._is_filled[expert]:
                return
            if not self._precomputed_ERH.numel():
                self._precomputed_ERH = torch.empty(self._size)  # untouched pages take no memory
            users_UD, items_ID = self._tables
            experts = self.model.moe.experts
            user_DH, item_DH = experts.kernel_EDH[expert].chunk(2)
            users_UH, items_IH = self._precomputed_ERH[expert].split([len(users_UD), len(items_ID)])
            torch.addmm(experts.bias_EH[expert], users_UD, user_DH, out=users_UH)
            torch.mm(items_ID, item_DH, out=items_IH)
            self._is_filled[expert] = True

    def _mixed(
        self, user_B: Tensor, item_B: Tensor, weights_BTE: Tensor, selected_BTE: Tensor
    ) -> Tensor:
        """The mixtures (B, T, H): sum_e w_e relu(user half + item half) over the chosen experts."""
        num_rows, num_tasks, num_experts = selected_BTE.shape
        flat_N = positions(selected_BTE)
        slot_N = flat_N.div(num_experts, rounding_mode="floor")
        row_N = slot_N.div(num_tasks, rounding_mode="floor")
        first_N = (flat_N - slot_N * num_experts) * self._precomputed_ERH.shape[1]
        users_N, items_N = first_N + user_B[row_N], first_N + item_B[row_N] + len(self._tables[0])
        both_N2 = torch.stack([users_N, items_N], dim=1)
        precomputed_XH = self._precomputed_ERH.flatten(0, 1)
        hidden_NH = F.embedding_bag(both_N2, precomputed_XH, mode="sum").relu_()
        start_S, weight_N = starts(slot_N, num_rows * num_tasks), weights_BTE.flatten()[flat_N]
        bags = torch.arange(len(flat_N)), start_S, False, 0, False, weight_N
        return torch.embedding_bag(hidden_NH, *bags)[0].unflatten(0, (num_rows, num_tasks))
