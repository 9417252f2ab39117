"""What each expert contributes, where means of the others answer too."""

from __future__ import annotations

import pytest
import torch

from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.model.request import Request
from recsys_moe.model.shape import ModelShape
from recsys_moe.routers import ROUTERS


@torch.inference_mode()
def test_an_expert_is_left_out_beside_the_running_means() -> None:
    """tower(y) - tower(y - w_e f_e(x)) with y the layer's own mixture, means included."""
    torch.manual_seed(0)
    config = ROUTERS["default_moe"].Config()
    sizes = {"embedding_dim": 4, "num_experts": 5, "expert_dim": 6, "tower_dims": (5,)}
    model = MultiTaskMoE(MultiTaskMoE.Config(router=config, **sizes), ModelShape(7, 8, 2)).eval()  # type: ignore[arg-type]
    assert model.moe.output_means is not None
    for values in (*model.parameters(), model.moe.output_means.mean_EH):
        torch.nn.init.normal_(values, std=0.7)
    request = Request(torch.tensor([0, 3, 7]), torch.tensor([8, 2, 5]))
    x_BD = model.encode(request)
    mixed_BTH, routings = model.moe(x_BD)
    kernel_EDH, bias_EH = model.moe.experts.kernel_EDH, model.moe.experts.bias_EH
    for task, rows in enumerate(model.expert_shares(request)):
        for row, shares in enumerate(rows):
            assert len(shares) == 2
            for share in shares:
                e, y_H = share.expert, mixed_BTH[row, task]
                output_H = torch.relu(x_BD[row] @ kernel_EDH[e] + bias_EH[e])
                without_H = y_H - routings[task].weights_BE[row, e] * output_H
                change = (model.towers[task](y_H) - model.towers[task](without_H)).item()
                assert share.contribution == pytest.approx(change, abs=1e-5)
