"""Negatives that `prepare` drew, drawn anew for every epoch, also by popularity.

Drawn once, they are learned by heart: in every epoch the model sees the same few items that a user
has not watched, and in the end tells these from others. Drawn uniformly, hardly any is an item that
is in question at the head of a list. And where a user has as many as it has watched, most users
have few, and their lists count as much as others'. Axes: N rows, M rows with a drawn negative,
T tasks, U users, I items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from recsys_moe.data.columns import Columns, Rows
from recsys_moe.errors import ConfigError
from recsys_moe.schema import Schema
from recsys_moe.seeds import stream_seed

OFF = "set it to false, with data.popularity_exponent=0 and data.user_exponent=1"
"""What a configuration says that does without."""
TRIES = 100
"""Draws for a row before it keeps its item, as that of a user who has watched nearly all."""


class FreshNegatives:
    """The rows of a training split with other items, and perhaps users, in its drawn negatives.

    An item that w of the split's other rows have is drawn in proportion to (w + 1)^`power`, from
    all but those of the user's other rows: uniformly for power 0, more from popular ones for 0.75
    (Mikolov et al. 2013, "Distributed representations of words and phrases"). What the user watched
    in other splits may be drawn: training does not know of it. A user with m drawn negatives gets
    others in proportion to m^`user_power`: its own m for 1, as many as any other user for 0.

    The odds of label 1 are then those among the negatives of `prepare` times m q0 / (m' q), with q
    the chance of the row's item among all that are free for its user, q0 the uniform one, and m'
    how many negatives the user has on average. log(m' q / (m q0)) is the `offset` of a row:
    subtracted from the logit that the loss sees, it leaves the model with the logits of negatives
    as `prepare` draws them, which are what it is judged by (as in Yi et al. 2019,
    "Sampling-bias-corrected neural modeling for large corpus item recommendations").
    """

    def __init__(
        self, rows: Rows, schema: Schema, power: float = 0.0, user_power: float = 1.0
    ) -> None:
        """Raises ConfigError where `prepare` has drawn no negatives, or drawn them otherwise."""
        _check_drawn(schema)
        self.rows, self.items = rows, schema.item.size
        self.task = next(t for t, task in enumerate(schema.tasks) if task.kind == "binary")
        self.power, self.user_power = power, user_power
        positives_I = torch.zeros(self.items + 1, dtype=torch.int64)
        drawn_U = torch.zeros(schema.user.size + 1, dtype=torch.int64)
        self.taken = torch.cat([*self._count(positives_I, drawn_U)]).unique()
        self.is_drawn_T = (torch.arange(len(schema.tasks)) == self.task) & (drawn_U.sum() > 0)
        self.rate_I = (positives_I[: self.items].double() + 1) ** power
        self.mean_rate_U = self._mean_rates(len(drawn_U))
        self.rate_U = torch.where(drawn_U > 0, drawn_U.double() ** user_power, 0)
        # (U,): how many times as many negatives a user has on average; 1 where it had none.
        share_U = self.rate_U / self.rate_U.sum() * drawn_U.sum()
        self.more_U = torch.where(drawn_U > 0, share_U / drawn_U, 1)

    def _count(self, positives_I: Tensor, drawn_U: Tensor) -> Iterator[Tensor]:
        """The keys of the rows that stay, chunk by chunk; their items and the users of the others
        are counted."""
        for chunk in self.rows.chunks():
            is_drawn_N = self._is_drawn(chunk)
            user_N, item_N = chunk.user.long(), chunk.item.long()
            drawn_U += torch.bincount(user_N[is_drawn_N], minlength=len(drawn_U))
            positives_I += torch.bincount(item_N[~is_drawn_N], minlength=len(positives_I))
            yield self._keys(user_N[~is_drawn_N], item_N[~is_drawn_N]).unique()

    def _is_drawn(self, rows: Columns) -> Tensor:
        """(N,): the negatives that `prepare` drew, whose only label is 0."""
        has_one_label_N = (~rows.labels.isnan()).sum(1) == 1
        return has_one_label_N & (rows.labels[:, self.task] == 0)

    def rows_of(self, seed: int) -> Rows:
        """All rows, in their order, with the negatives that follow from `seed`; of rows on disk
        those of a row group follow from `seed` and its number, whoever reads it and when."""
        if isinstance(self.rows, Columns):
            return self.drawn(self.rows, seed)
        return self.rows.changed(
            lambda group, number: self.drawn(group, stream_seed(seed, "group", number))
        )

    def drawn(self, rows: Columns, seed: int) -> Columns:
        """Some of the rows with the negatives that follow from `seed`."""
        generator = torch.Generator().manual_seed(seed)
        user_N, item_N = rows.user.clone(), rows.item.clone()
        drawn_M = self._is_drawn(rows).nonzero()[:, 0]
        user_M = self._draw_users(rows.user[drawn_M].long(), generator)
        left_M = torch.arange(len(drawn_M))
        for _ in range(TRIES):
            drawn = self._draw_items(len(left_M), generator)
            is_free = ~self._is_taken(self._keys(user_M[left_M], drawn))
            row = drawn_M[left_M[is_free]]
            user_N[row], item_N[row] = user_M[left_M[is_free]].int(), drawn[is_free].int()
            left_M = left_M[~is_free]
            if not len(left_M):
                break
        return replace(rows, user=user_N, item=item_N, offset=self._offsets(user_N, item_N))

    def _draw_users(self, user_M: Tensor, generator: torch.Generator) -> Tensor:
        if self.user_power == 1:
            return user_M
        return _draw(self.rate_U, len(user_M), generator)

    def _draw_items(self, size: int, generator: torch.Generator) -> Tensor:
        if not self.power:
            return torch.randint(self.items, (size,), generator=generator)
        return _draw(self.rate_I, size, generator)

    def _mean_rates(self, users: int) -> Tensor:
        """Over the items that are free for each user; over all for who has no free one. (U,)"""
        user, item = self.taken // (self.items + 1), self.taken % (self.items + 1)
        is_known = item < self.items
        user, item = user[is_known], item[is_known]
        taken_U = torch.zeros(users, dtype=torch.float64).index_add_(0, user, self.rate_I[item])
        free_U = self.items - torch.bincount(user, minlength=users)
        mean_U = (self.rate_I.sum() - taken_U) / free_U.clamp(min=1)
        return torch.where(free_U > 0, mean_U, self.rate_I.mean())

    def _offsets(self, user_N: Tensor, item_N: Tensor) -> Tensor | None:
        """(N, T): 0 in tasks whose negatives are not drawn; of the user alone where the item is
        unseen."""
        if not self.power and self.user_power == 1:
            return None
        user_N = user_N.long()
        rate_I = torch.cat([self.rate_I, self.rate_I.new_ones(1)])
        offset_N = (rate_I[item_N.long()] / self.mean_rate_U[user_N]).log()
        offset_N = torch.where(item_N < self.items, offset_N, 0) + self.more_U[user_N].log()
        return offset_N.float()[:, None] * self.is_drawn_T

    def _keys(self, user: Tensor, item: Tensor) -> Tensor:
        """One number per pair; the unseen item has one too."""
        return user * (self.items + 1) + item

    def _is_taken(self, keys: Tensor) -> Tensor:
        place = torch.searchsorted(self.taken, keys)
        return torch.cat([self.taken, self.taken.new_full((1,), -1)])[place] == keys


def _draw(rate_X: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Indices (size,) in proportion to their rates."""
    ends_X = rate_X.cumsum(0)
    place = torch.rand(size, generator=generator, dtype=torch.float64) * ends_X[-1]
    return torch.searchsorted(ends_X, place, right=True).clamp(max=len(rate_X) - 1)


def _check_drawn(schema: Schema) -> None:
    if schema.negatives is None:
        got = f"{schema.name}, where they are in the log"
    elif schema.negatives != "uniform":
        got = f"--negative-distribution {schema.negatives}"
    elif alike := schema.report.get("logged_negatives"):
        got = f"{schema.name}, where {alike} rows of the log look like drawn ones (label 0 alone)"
    else:
        return
    raise ConfigError(
        "data.resample_negatives=true needs negatives that `prepare` has drawn uniformly, "
        f"got {got}; {OFF}"
    )
