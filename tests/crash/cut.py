"""A router that cuts its process's connections to the others, and goes on living. Linux.

Named by a run as `tests.crash.cut:CutRouter`. In the environment CUT_RANK is the process and CUT_AT
how many epochs come before; softmax as ever without them.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import torch
from torch import Tensor

from recsys_moe.routers.base import GatedRouter, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.settings import RouterConfig


def cut() -> None:
    """Shut down every TCP connection of this process; the descriptors stay."""
    for number in os.listdir("/proc/self/fd"):
        try:
            is_socket = os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except FileNotFoundError:  # the listing's own
            continue
        if is_socket:
            with socket.socket(fileno=os.dup(int(number))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    with suppress(OSError):
                        connection.getpeername()  # raises for one that only listens
                        connection.shutdown(socket.SHUT_RDWR)


class CutRouter(GatedRouter):
    """Softmax over all experts."""

    class Config(RouterConfig):
        name: str = "cut"

    summary = "softmax, and a cut"

    @property
    def max_selected(self) -> int:
        return self.shape.num_experts

    def set_epoch(self, epochs: float) -> None:
        if os.environ.get("CUT_RANK") == os.environ.get("RANK") and epochs >= float(
            os.environ.get("CUT_AT", "inf")
        ):
            cut()

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        probs_BE = (logits_BE := gate_logits(self.gate, x_BD)).softmax(-1)
        return Routing(probs_BE, torch.ones_like(probs_BE, dtype=torch.bool), probs_BE, logits_BE)
