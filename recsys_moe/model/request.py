"""What a model is asked about: one request per row. Axis: B rows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Request(NamedTuple):
    """Rows to score: opaque to callers, read by the encoders of a model.

    `user`, `item`: indices (B,), each in 0..count, where count is the OOV id. With encoders, ~i is
    the OOV id with the features and the bag of i. Further fields are optional and None by default.
    """

    user: Tensor
    item: Tensor
