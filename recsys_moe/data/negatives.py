"""Resample the negatives of `prepare` for every epoch, also by popularity.

A model memorises fixed negatives. Uniform negatives hardly contain the popular items at the head of
a ranking. Negatives in proportion to the positives of a user give most users few of them.
Axes: N rows, M rows with a sampled negative, T tasks, U users, I items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import Columns
from recsys_moe.data.touched import MeanRates, MeanRatesByTime, Touched, firsts, pair_keys
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import positive_task
from recsys_moe.schema import Schema
from recsys_moe.seeds import stream_seed

OFF = "set it to false, with data.popularity_exponent=0 and data.user_exponent=1"
"""Remedy in errors."""
TRIES = 100
"""Draws for a row before it keeps its item; users with nearly all items as positives need it."""


class ResampledNegatives:
    """The rows of a training split with newly sampled items, and perhaps users, in its negatives.

    An item of w other rows of the split is drawn in proportion to (w + 1)^`power`, from all items
    of the vocabulary without another row of the user: uniformly for power 0, more popular ones for
    0.75 (Mikolov et al. 2013, "Distributed representations of words and phrases"). Positives of
    other splits may be drawn: training does not know them. Of rows with times, which models of
    order read, those items are drawn that had a row by the time of the row and that the user had
    not touched by then, as `prepare` does: a later positive of the user is one of them. (w counts
    later rows too, which the offset below makes up for.)

    A user with m sampled negatives gets new ones in proportion to m^`user_power`: m again for 1, as
    many as any other user for 0. A row keeps the context and the history of the positive that
    `prepare` drew it for, or gets those of a random row of its new user.

    Sampling changes the odds of label 1 by m q0 / (m' q), with q the chance of the row's item among
    the items free for its user, q0 the uniform chance, and m' the expected negatives of the user.
    The `offset` of a row, log(m' q / (m q0)), is subtracted from the logit in the loss. So the
    logits of the model stay those of the negatives of `prepare`, on which it is evaluated (Yi et
    al. 2019, "Sampling-bias-corrected neural modeling for large corpus item recommendations").
    """

    def __init__(
        self, rows: Rows, schema: Schema, power: float = 0.0, user_power: float = 1.0
    ) -> None:
        """Raises ConfigError unless `prepare` sampled the negatives uniformly."""
        _check_drawn(schema)
        self.rows, self.items = rows, schema.item.trained
        self.task = positive_task(schema.tasks) or 0
        self.power, self.user_power = power, user_power
        positives_I = torch.zeros(self.items + 1, dtype=torch.int64)
        drawn_U = torch.zeros(schema.user.size + 1, dtype=torch.int64)
        self.touched = Touched([*self._count(positives_I, drawn_U)], self.items)
        self.moments = None if user_power == 1 else self._moments(len(drawn_U))
        self.is_drawn_T = (torch.arange(len(schema.tasks)) == self.task) & (drawn_U.sum() > 0)
        self.rate_I = (positives_I[: self.items].double() + 1) ** power
        self.mean_rates = self._mean_rates(len(drawn_U)) if power else None
        self.rate_U = torch.where(drawn_U > 0, drawn_U.double() ** user_power, 0)
        self.ends_I, self.ends_U = self.rate_I.cumsum(0), self.rate_U.cumsum(0)
        # (U,): how many times as many negatives a user has on average; 1 where it had none.
        share_U = self.rate_U / self.rate_U.sum() * drawn_U.sum()
        self.more_U = torch.where(drawn_U > 0, share_U / drawn_U, 1)

    def _mean_rates(self, users: int) -> MeanRates | MeanRatesByTime:
        if self.touched.since_K is None:
            return MeanRates(self.touched, self.rate_I, users)
        return MeanRatesByTime(self.touched, self.rate_I)

    def _count(
        self, positives_I: Tensor, drawn_U: Tensor
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Keys and times of the rows that stay, by chunk; count their items, and users of the
        others."""
        for chunk in self.rows.chunks():
            is_drawn_N = self._is_drawn(chunk)
            user_N, item_N = chunk.user.long(), chunk.item.long()
            drawn_U += torch.bincount(user_N[is_drawn_N], minlength=len(drawn_U))
            positives_I += torch.bincount(item_N[~is_drawn_N], minlength=len(positives_I))
            key_K = pair_keys(user_N[~is_drawn_N], item_N[~is_drawn_N], self.items)
            if (time_N := _seconds(chunk.time)) is None:
                yield key_K.unique(), None
            else:
                yield firsts(key_K, time_N[~is_drawn_N])

    def _moments(self, users: int) -> _Moments | None:
        """Of the positives and the sampled negatives, which have those of positives."""
        owner, parts = [], []
        for chunk in self.rows.chunks():
            if not _moment(chunk):
                return None
            counts_N = (chunk.labels[:, self.task] == 1) | self._is_drawn(chunk)
            owner.append(chunk.user[counts_N].long())
            parts.append({name: one[counts_N] for name, one in _moment(chunk).items()})
        columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return _Moments(torch.cat(owner), columns, users)

    def _is_drawn(self, rows: Columns) -> Tensor:
        """(N,): the negatives that `prepare` sampled, whose only label is 0."""
        has_one_label_N = (~rows.labels.isnan()).sum(1) == 1
        return has_one_label_N & (rows.labels[:, self.task] == 0)

    def rows_of(self, seed: int) -> Rows:
        """All rows in order, with negatives that depend on `seed` only; on disk those of a row
        group depend on `seed` and its number."""
        if isinstance(self.rows, Columns):
            return self.drawn(self.rows, seed)
        return self.rows.changed(
            lambda group, number: self.drawn(group, stream_seed(seed, "group", number))
        )

    def drawn(self, rows: Columns, seed: int) -> Columns:
        """`rows`, some of the split, with negatives that depend on `seed` only."""
        generator = torch.Generator().manual_seed(seed)
        drawn_M = self._is_drawn(rows).nonzero()[:, 0]
        user_M = self._draw_users(rows.user[drawn_M].long(), generator)
        moment = {name: one[drawn_M] for name, one in _moment(rows).items()}
        if moment and self.moments is not None:
            moment = self.moments.draw(user_M, generator)
        item_M = self._draw_items(user_M, _seconds(moment.get("time")), generator)
        is_found_M = item_M >= 0  # other rows stay as they are
        fresh = {"user": user_M.int(), "item": item_M.int(), **moment}
        changed = {name: getattr(rows, name).clone() for name in fresh}
        for name, column in fresh.items():
            changed[name][drawn_M[is_found_M]] = column[is_found_M]
        other = replace(rows, **changed)
        return replace(other, offset=self._offsets(other))

    def _draw_users(self, user_M: Tensor, generator: torch.Generator) -> Tensor:
        if self.user_power == 1:
            return user_M
        return _draw(self.ends_U, len(user_M), generator)

    def _draw_items(
        self, user_M: Tensor, time_M: Tensor | None, generator: torch.Generator
    ) -> Tensor:
        """A free item for each row, -1 where `TRIES` draws have found none. (M,)"""
        item_M = torch.full((len(user_M),), -1)
        left_M = torch.arange(len(user_M))
        for _ in range(TRIES):
            drawn = self._draw_any(len(left_M), generator)
            when = None if time_M is None else time_M[left_M]
            is_free = self.touched.is_free(user_M[left_M], drawn, when)
            item_M[left_M[is_free]] = drawn[is_free]
            left_M = left_M[~is_free]
            if not len(left_M):
                break
        return item_M

    def _draw_any(self, size: int, generator: torch.Generator) -> Tensor:
        if not self.power:
            return torch.randint(self.items, (size,), generator=generator)
        return _draw(self.ends_I, size, generator)

    def _offsets(self, rows: Columns) -> Tensor | None:
        """(N, T): 0 in tasks without sampled negatives; the user's part only for the OOV item."""
        if not self.power and self.user_power == 1:
            return None
        user_N, item_N = rows.user.long(), rows.item.long()
        rate_I = torch.cat([self.rate_I, self.rate_I.new_ones(1)])
        offset_N = self.more_U[user_N].log()
        if self.mean_rates is not None:
            mean_N = self.mean_rates.of(user_N, _seconds(rows.time))
            of_item_N = (rate_I[item_N] / mean_N).log()
            offset_N = torch.where(item_N < self.items, of_item_N, 0) + offset_N
        return offset_N.float()[:, None] * self.is_drawn_T


def _seconds(time_N: Tensor | None) -> Tensor | None:
    """Times as integers; None where rows have none."""
    return None if time_N is None else time_N.long()


def _moment(rows: Columns) -> dict[str, Tensor]:
    """What rows have of the moment that they are of."""
    columns = {"context": rows.context, "history": rows.history, "time": rows.time}
    return {name: column for name, column in columns.items() if column is not None}


class _Moments:
    """Contexts (P, C), histories (P, 2) and times (P,) of rows by their users."""

    def __init__(self, user_P: Tensor, columns: dict[str, Tensor], users: int) -> None:
        user_P, order_P = user_P.sort(stable=True)
        self.columns = {name: column[order_P] for name, column in columns.items()}
        self.count_U = torch.bincount(user_P, minlength=users)
        self.first_U = self.count_U.cumsum(0) - self.count_U

    def draw(self, user_M: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Those of a random row of each user, who must have one."""
        count_M = self.count_U[user_M]
        share_M = torch.rand(len(user_M), generator=generator, dtype=torch.float64)
        place_M = (share_M * count_M).long().minimum(count_M - 1)
        row_M = self.first_U[user_M] + place_M
        return {name: column[row_M] for name, column in self.columns.items()}


def _draw(ends_X: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Indices (size,) in proportion to their rates, whose cumulative sums these are."""
    place = torch.rand(size, generator=generator, dtype=torch.float64) * ends_X[-1]
    return torch.searchsorted(ends_X, place, right=True).clamp(max=len(ends_X) - 1)


def _check_drawn(schema: Schema) -> None:
    if schema.negatives is None:
        got = f"{schema.name}, with negatives in the log"
    elif schema.negatives != "uniform":
        got = f"--negative-distribution {schema.negatives}"
    elif logged := schema.report.get("logged_negatives"):
        got = f"{schema.name}, where {logged} rows of the log have label 0 only, as sampled ones do"
    else:
        return
    raise ConfigError(
        "data.resample_negatives=true needs negatives that `prepare` sampled uniformly, "
        f"got {got}; {OFF}"
    )
