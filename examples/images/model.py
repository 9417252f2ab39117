"""The networks of the paper's image experiments (its supplement, S6.2).

Axes: B batch, T tasks, E experts, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recsys_moe import MoE, Routing, router
from recsys_moe.errors import ConfigError

FILTERS, KERNEL, WIDTH, CLASSES = (10, 20), 5, 50, 10


class Expert(nn.Sequential):
    """(R, channels, side, side) -> (R, 50): 43,880 parameters for 1 x 36 x 36, 33,380 for SVHN.

    Pooled before the ReLU, which gives the same and is a quarter of the work; channels last, which
    halves the time of the convolutions on a CPU.
    """

    def __init__(self, channels: int, side: int) -> None:
        for _ in FILTERS:
            side = (side - KERNEL + 1) // 2
        super().__init__(
            *_convolution(channels, FILTERS[0]),
            *_convolution(FILTERS[0], FILTERS[1]),
            nn.Flatten(),
            *_dense(FILTERS[1] * side * side),
            *_dense(WIDTH),
        )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class ImageMoE(nn.Module):
    """Experts shared by the tasks, and for each task a router on the raw pixels and a head."""

    def __init__(
        self, shape: tuple[int, int], tasks: int, experts: int, chosen: dict[str, Any]
    ) -> None:
        """`shape`: channels and side. `chosen`: name and settings of the router.

        Raises ConfigError for a router or setting that there is not, or that images cannot have.
        """
        super().__init__()
        self.chosen = chosen
        channels, side = shape
        sizes: dict[str, Any] = {"input_dim": channels * side * side, "num_experts": experts}
        routers = [router(**chosen, **sizes, task=n, num_tasks=tasks) for n in range(tasks)]
        if routers[0].passes != 1 or chosen["name"] == "hash":
            raise ConfigError(
                f"--router must decide by the pixels in one pass, got {chosen['name']}; "
                "take another of `recsys-moe routers`"
            )
        self.layer = MoE([Expert(channels, side) for _ in range(experts)], routers)
        self.heads = nn.ModuleList(
            nn.Sequential(*_dense(WIDTH), *_dense(WIDTH), nn.Linear(WIDTH, CLASSES))
            for _ in range(tasks)
        )
        self.heads.apply(_as_keras)
        self.layer.experts.apply(_as_keras)

    def forward(self, image: Tensor) -> tuple[Tensor, list[Routing]]:
        """Logits (B, T, C) and what each task's router decided."""
        mixed_BTH, routings = self.layer(image)
        logits = [head(x_BH) for head, x_BH in zip(self.heads, mixed_BTH.unbind(1), strict=True)]
        return torch.stack(logits, 1), routings

    def sizes(self) -> dict[str, int]:
        """Parameters of an expert, a router and a head."""
        parts = {"expert": self.layer.experts[0], "router": self.layer.routers[0]}
        parts["head"] = self.heads[0]
        return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}


def _convolution(channels: int, filters: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, filters, KERNEL), nn.MaxPool2d(2), nn.ReLU()]


def _dense(width: int) -> list[nn.Module]:
    return [nn.Linear(width, WIDTH), nn.ReLU()]


def _as_keras(module: nn.Module) -> None:
    """Glorot-uniform kernels and zero biases, which the published code of the data started from."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
