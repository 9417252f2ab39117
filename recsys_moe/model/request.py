"""What a model is asked about: one request per row. Axis: B rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Request(NamedTuple):
    """Rows to score: opaque to callers, read by the encoders of a model.

    `user`, `item`: indices (B,), each in 0..count, where count is the OOV id. With encoders, ~i is
    the OOV id with the features and the bag of i. Further fields are optional and None by default.
    `context`: (B, C) float32, per context feature of the model the index of a category or a
    standardised number, NaN where missing; None: all are missing.
    """

    user: Tensor
    item: Tensor
    context: Tensor | None = None

    def to(self, device: torch.device) -> Request:
        """On a device."""
        return self._each(lambda one: one.to(device))

    def take(self, rows: Tensor | slice) -> Request:
        """Some of the rows."""
        return self._each(lambda one: one[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Request:
        parts: Any = (None if one is None else change(one) for one in self)
        return Request(*parts)

    @property
    def rows(self) -> int:
        """B."""
        return len(self.user)

    def with_items(self, item: Tensor) -> Request:
        """The same users, asked about other items."""
        return self._replace(item=item)


def of_users(user_U: Tensor) -> Request:
    """For the vectors of users: no item is asked about."""
    return Request(user_U, torch.zeros_like(user_U))


def of_items(item_N: Tensor) -> Request:
    """For the vectors of items: no user asks."""
    return Request(torch.zeros_like(item_N), item_N)
