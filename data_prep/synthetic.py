"""Made-up ratings with experts planted in them: `recsys-moe prepare synthetic`.

Users and items belong to groups, one per planted expert. A user's group decides which item groups
the user likes (so who touches what) and by which hidden factors the user rates, so one shared
network fits worse than a mixture. The shape is MovieLens': long-tailed popularity and activity,
whole stars from 1 to 5, timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.ids import Ints
from data_prep.options import at_least, at_most
from data_prep.rows import Raw, rating_labels, rating_tasks
from data_prep.split import protocols, splits
from data_prep.split.negatives import Negatives
from data_prep.split.randomness import stream
from data_prep.write import writer
from recsys_moe.schema import ConfigError, Schema

Floats = NDArray[np.float64]
FEWEST_PER_USER = 3
FACTORS = 4
_START = 946_684_800  # 2000-01-01, seconds since 1970
_THREE_YEARS = 3 * 365 * 24 * 3600
_CELLS = 4_000_000
_MOST = 2**31 - 2
"""Users or items: the indices of prepared data are int32, and one is that of unseen ids."""


@dataclass(frozen=True, kw_only=True)
class _World:
    """What is planted. U users, I items, G groups."""

    user_group: Ints
    item_group: Ints
    liking: Floats
    """(G, G): how much a user group likes an item group."""
    popularity: Floats
    """(I,) log scale."""
    user_taste: Floats
    """(U, FACTORS)"""
    item_taste: Floats
    """(G, I, FACTORS): every user group sees the items in its own way."""
    quality: Floats
    """(I,) in stars."""


def prepare(
    out: Path,
    *,
    users: int = 1000,
    items: int = 800,
    interactions: int = 60_000,
    experts: int = 4,
    seed: int = 0,
    force: bool = False,
) -> Schema:
    """Make `interactions` ratings, then the paper's MovieLens protocol, and write `out`.

    users.parquet and items.parquet name the planted group of each id. Raises ConfigError for sizes
    that do not fit together.
    """
    _check_sizes(users, items, interactions, experts)
    writer.check_target(Path(out), force)
    world = _world(users, items, experts, stream(seed, "synthetic world"))
    rng = stream(seed, "synthetic rows")
    counts = _activity(users, items, interactions, rng)
    user, item = _interactions(world, counts, rng)
    rating = _ratings(world, user, item, rng)
    raw = Raw(
        name="synthetic",
        user=pa.array(user + 1),
        item=pa.array(item + 1),
        labels=rating_labels(rating),
        timestamp=_timestamps(counts, rng),
        tasks=rating_tasks(1.0, 5.0),
        file="synthetic",
        users=_groups("user", world.user_group),
        items=_groups("item", world.item_group)
        .add_column(1, "title", pa.array([f"Item {i + 1:04d}" for i in range(items)]))
        .add_column(2, "genres", pa.array([f"Group {g}" for g in world.item_group])),
    )
    prepared = protocols.prepare_rows(
        raw,
        protocol="paper",
        seed=seed,
        command=(
            f"prepare synthetic --users {users} --items {items} --interactions {interactions} "
            f"--experts {experts} --seed {seed}"
        ),
        to_draw=Negatives(task="watch"),
    )
    return writer.write(prepared, Path(out), force=force)


def _check_sizes(users: int, items: int, interactions: int, experts: int) -> None:
    at_most("--users", users, _MOST)
    at_most("--items", items, _MOST)
    at_least("--experts", experts, 1)
    at_least("--users", users, max(2, experts))
    at_least("--items", items, max(2 * FEWEST_PER_USER, experts))
    low, high = FEWEST_PER_USER * users, users * (items // 2)
    if not low <= interactions <= high:
        raise ConfigError(
            f"--interactions must be in {low}..{high} for {users} users and {items} items "
            f"({FEWEST_PER_USER} to {items // 2} per user), got {interactions}"
        )


def _world(users: int, items: int, groups: int, rng: np.random.Generator) -> _World:
    item_group = rng.permutation(np.arange(items) % groups)
    user_group = rng.permutation(np.arange(users) % groups)
    # Each user group likes one item group most; the others by chance, less.
    liking = rng.uniform(-2.0, 0.5, size=(groups, groups))
    np.fill_diagonal(liking, 2.0)
    return _World(
        user_group=user_group,
        item_group=item_group,
        liking=liking,
        popularity=-np.log(4 + rng.permutation(items)),
        user_taste=rng.normal(size=(users, FACTORS)),
        item_taste=rng.normal(size=(groups, items, FACTORS)) / np.sqrt(FACTORS),
        quality=rng.normal(scale=0.5, size=items),
    )


def _activity(users: int, items: int, total: int, rng: np.random.Generator) -> Ints:
    """Ratings per user: long-tailed, FEWEST_PER_USER..items // 2 each, `total` together."""
    room = items // 2 - FEWEST_PER_USER
    counts = np.full(users, FEWEST_PER_USER)
    weight = rng.lognormal(sigma=0.9, size=users)
    while (left := total - int(counts.sum())) > 0:
        open_weight = np.where(counts < FEWEST_PER_USER + room, weight, 0.0)
        counts += splits.allocate(open_weight, left)
        counts = np.minimum(counts, FEWEST_PER_USER + room)
    return counts


def _interactions(world: _World, counts: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """(user, item) pairs: counts[u] items without replacement, by popularity and liking.

    The largest log weights plus Gumbel noise are such a sample (Kool et al. 2019).
    """
    users, items = len(counts), len(world.popularity)
    block = max(1, _CELLS // items)
    chosen = []
    for start in range(0, users, block):
        some = np.arange(start, min(start + block, users))
        liking = world.liking[world.user_group[some]][:, world.item_group]
        score = world.popularity + liking + rng.gumbel(size=(len(some), items))
        order = np.argsort(-score, axis=1, kind="stable")
        chosen.append(order[np.arange(items) < counts[some][:, None]])
    return np.repeat(np.arange(users), counts), np.concatenate(chosen)


def _ratings(world: _World, user: Ints, item: Ints, rng: np.random.Generator) -> Floats:
    group = world.user_group[user]
    stars = 3.3 + world.quality[item] + 0.4 * world.liking[group, world.item_group[item]]
    stars += 0.7 * (world.user_taste[user] * world.item_taste[group, item]).sum(axis=1)
    stars += rng.normal(scale=0.5, size=len(user))
    return np.clip(np.rint(stars), 1, 5)


def _timestamps(counts: Ints, rng: np.random.Generator) -> Ints:
    """Each user starts at some time in three years and rates for up to a month."""
    begin = _START + rng.integers(0, _THREE_YEARS, size=len(counts))
    return np.repeat(begin, counts) + rng.integers(0, 30 * 24 * 3600, size=int(counts.sum()))


def _groups(key: str, group: Ints) -> pa.Table:
    ids = pa.array(np.arange(1, len(group) + 1))
    return pa.table({key: ids, "planted_group": pa.array(group.astype(np.int32))})
