"""Negatives that `prepare` drew, drawn anew for every epoch.

Drawn once, they are learned by heart: in every epoch the model sees the same few items that a user
has not watched, and in the end tells these from others. Axes: N rows, M rows with a drawn negative.
"""

from __future__ import annotations

import shlex

import torch
from torch import Tensor

from recsys_moe.data.columns import Columns
from recsys_moe.errors import ConfigError
from recsys_moe.schema import Schema

TRIES = 100
"""Draws for a row before it keeps its item, as that of a user who has watched nearly all."""


class FreshNegatives:
    """The rows of a training split with other items in its drawn negatives.

    Items are drawn uniformly from all known ones but those of the user's other training rows. What
    the user watched in other splits may be drawn: training does not know of it.
    """

    def __init__(self, rows: Columns, schema: Schema) -> None:
        """Raises ConfigError where `prepare` has drawn no negatives, or drawn them otherwise."""
        _check_drawn(schema)
        self.rows, self.items = rows, schema.item.size
        has_one_label_N = (~rows.labels.isnan()).sum(1) == 1
        is_drawn_N = has_one_label_N & rows.labels.nan_to_num(0).eq(0).all(1)
        self.drawn_M = is_drawn_N.nonzero()[:, 0]
        self.user_M = rows.user[self.drawn_M].long()
        self.taken = self._keys(rows.user[~is_drawn_N].long(), rows.item[~is_drawn_N]).unique()

    def rows_of(self, seed: int) -> Columns:
        """All rows, in their order, with the negatives that follow from `seed`."""
        generator = torch.Generator().manual_seed(seed)
        item_N = self.rows.item.clone()
        left_M = torch.arange(len(self.drawn_M))
        for _ in range(TRIES):
            drawn = torch.randint(self.items, (len(left_M),), generator=generator)
            is_free = ~self._is_taken(self._keys(self.user_M[left_M], drawn))
            item_N[self.drawn_M[left_M[is_free]]] = drawn[is_free].int()
            left_M = left_M[~is_free]
            if not len(left_M):
                break
        return Columns(self.rows.user, item_N, self.rows.labels, self.rows.weight)

    def _keys(self, user: Tensor, item: Tensor) -> Tensor:
        """One number per pair; the unseen item has one too."""
        return user * (self.items + 1) + item

    def _is_taken(self, keys: Tensor) -> Tensor:
        place = torch.searchsorted(self.taken, keys)
        return torch.cat([self.taken, self.taken.new_full((1,), -1)])[place] == keys


def _check_drawn(schema: Schema) -> None:
    words = shlex.split(schema.command)
    if "missing_negatives" not in schema.report:
        got = f"{schema.name}, where they are in the log"
    elif "--negative-distribution" in words:
        got = f"--negative-distribution {words[words.index('--negative-distribution') + 1]}"
    else:
        return
    raise ConfigError(
        "data.fresh_negatives=true needs negatives that `prepare` has drawn uniformly, "
        f"got {got}; set it to false"
    )
