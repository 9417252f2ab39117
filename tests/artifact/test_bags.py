"""Histories of a finished model, pooled as the model in training pools them."""

from __future__ import annotations

import torch

from recsys_moe.artifact.bags import pooled

TABLE = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 8.0]])
KERNEL = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
ENCODERS = {"user_bag.table_RW": TABLE, "user_bag.kernel_DW": KERNEL}


def test_a_pool_is_the_kernel_of_the_sum_over_the_root_of_the_number_and_0_of_nothing() -> None:
    """Of rows 0 and 2: (1 + 5, 2 + 8) / sqrt(2), with their sum 16 / sqrt(2) as the third; of row 1
    alone itself."""
    rows = [torch.tensor([0, 2]), torch.tensor([1]), torch.empty(0, dtype=torch.int64)]
    found_UD = pooled(ENCODERS, "item", rows)
    root = 2**0.5
    wanted_UD = torch.tensor([[6 / root, 10 / root, 16 / root], [3.0, 4.0, 7.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(found_UD, wanted_UD)
    assert pooled(ENCODERS, "item", []).shape == (0, 3)
