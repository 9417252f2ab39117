"""The experts' parameters, and a dropout that costs little on a CPU.

Axes: E experts, D input width, H expert width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recsys_moe.routers.stream import RandomStream


class Experts(nn.Module):
    """E one-layer experts, relu(x W_e + b_e) with dropout, in two stacked parameters.

    Stacked, an expert that nobody visits has a zero gradient and not a missing one. Kernels are
    Glorot-uniform per expert and biases zero (Keras' defaults, which the experiments used).
    """

    def __init__(
        self, num_experts: int, input_dim: int, expert_dim: int, dropout: float = 0.0
    ) -> None:
        """Sizes >= 1. `dropout`: rate in [0, 1) inside each expert, after the ReLU."""
        super().__init__()
        if min(num_experts, input_dim, expert_dim) < 1:
            sizes = f"{num_experts}, {input_dim}, {expert_dim}"
            raise ValueError(f"num_experts, input_dim and expert_dim must be >= 1, got {sizes}")
        self.kernel_EDH = nn.Parameter(torch.empty(num_experts, input_dim, expert_dim))
        self.bias_EH = nn.Parameter(torch.zeros(num_experts, expert_dim))
        for kernel_DH in self.kernel_EDH.unbind():
            nn.init.xavier_uniform_(kernel_DH.data)
        self.dropout = Dropout(dropout)

    def __len__(self) -> int:
        """E."""
        return len(self.kernel_EDH)


class Dropout(nn.Module):
    """Keep masks from raw random bytes, or bits for a rate of 1/2: far cheaper than F.dropout.

    The keep probability is rounded to 1/256 and activations are scaled by its exact inverse, so
    the expectation is right for every rate. A module, so that it is on exactly where `training`
    is True: Lightning sets that attribute on each module and does not call `train()`.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout must be in [0, 1), got {rate}")
        self.keep_of_256 = max(1, round(256 * (1 - rate)))
        self.stream = RandomStream()

    @property
    def scale(self) -> float:
        """Factor on the kept activations; 1 in evaluation."""
        return 256 / self.keep_of_256 if self.training else 1.0

    def mask(self, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """float32 mask of 1 (kept) and 0, or None when all activations are kept."""
        if not self.training or self.keep_of_256 == 256:
            return None
        size = torch.Size(shape).numel()
        keep = torch.empty(shape, device=like.device)
        if self.keep_of_256 == 128:
            return keep.copy_(self._coins(size, like.device).view(shape))
        lanes = self._bytes(size, like.device).view(shape)
        # Written as floats at once: multiplying by a bool mask converts it, at four times the cost.
        return torch.lt(lanes, self.keep_of_256, out=keep)

    def _coins(self, size: int, device: torch.device) -> Tensor:
        """uint8 0 or 1, each with probability 1/2: a bit each, where `_bytes` takes eight.

        All first bits come first, so that each of the few operations runs over long rows.
        """
        bytes_M = self._bytes(-(-size // 8), device)
        shift_8 = torch.arange(8, dtype=torch.uint8, device=device)
        bit_8 = torch.ones_like(shift_8).bitwise_left_shift_(shift_8)  # a copy would wait for a GPU
        return (bytes_M & bit_8[:, None]).clamp_(max=1).flatten()[:size]

    def _bytes(self, size: int, device: torch.device) -> Tensor:
        """Random bytes."""
        words = torch.empty((size + 7) // 8, dtype=torch.int64, device=device)
        # From -2**63 to the top: the default range leaves bit 63 at 0, and with it every eighth
        # byte below 128, which would always be kept at rate 0.5.
        words.random_(-(2**63), None, generator=self.stream.generator(device))
        return words.view(torch.uint8)[:size]
