"""Every router of the table learns on images with CNN experts, or is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.common.runs import chosen_router
from examples.images import train
from examples.images.data import multi_mnist
from examples.images.model import ImageMoE
from examples.images.module import row_losses
from examples.images.settings import settings_for
from recsys_moe.errors import ConfigError, RunError
from recsys_moe.routers import ROUTERS
from tests.examples.made_files import mnist_folder

REFUSED = {"hash": "the pixels in one pass", "thor": "the pixels in one pass"}
REFUSED |= {"default_moe": "needs Experts, got a list of modules"}


@pytest.mark.parametrize("name", sorted(set(ROUTERS) - set(REFUSED)))
def test_a_router_trains_cnn_experts(name: str) -> None:
    torch.manual_seed(0)
    model = ImageMoE((1, 36), 2, 4, chosen_router(name, 2, {})).train()
    image, labels_BT = torch.rand(6, 1, 36, 36), torch.randint(10, (6, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for step in range(3):
        model.layer.set_epoch(step)
        logits_BTC, routings = model(image)
        loss = row_losses(logits_BTC, labels_BT).mean() + model.layer.auxiliary_loss(routings)
        model.layer.on_step_end()
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.layer.experts.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.eval()
    assert torch.equal(model(image)[0], model(image)[0])


@pytest.mark.parametrize("name", REFUSED)
def test_a_router_that_images_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[name]):
        ImageMoE((1, 36), 2, 4, chosen_router(name, 2, {}))


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    splits = multi_mnist(mnist_folder(tmp_path / "data", 60, 12))
    settings = settings_for("multi_mnist", "softmax", lr=1e30, batch_size=8, epochs=3)
    with pytest.raises(RunError, match="loss .*not finite .*--lr"):
        train.train(settings, splits, tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
