"""Negatives in time: of what the log had by then, without what the user had; nothing of later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.rows import Examples, Prepared, Raw
from data_prep.split import negatives, protocols, randomness, timed_negatives
from data_prep.split.negatives import Negatives
from data_prep.split.randomness import mix
from recsys_moe.schema import SPLITS, Distribution, Task

TASK = Task(name="watch", kind="binary", column="watch")
Row = tuple[int, int, int, int]
"""User, item, time and label."""
rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 12), st.sampled_from([1, 1, 0])),
    min_size=6,
    max_size=40,
    unique_by=lambda row: row[:2],
)
KINDS: list[Distribution] = ["uniform", "popularity"]


def prepare(
    log: Sequence[Row],
    protocol: str = "given",
    *,
    ratio: float = 1,
    kind: Distribution = "uniform",
) -> Prepared:
    """`given`: all rows are training's."""
    user, item, when, label = (np.array(column) for column in zip(*log, strict=True))
    raw = Raw(
        name="x",
        user=pa.array(user),
        item=pa.array(item),
        labels={"watch": label.astype(np.float32)},
        timestamp=when,
        tasks=(TASK,),
        file="x",
    )
    return protocols.prepare_rows(
        raw,
        protocol=protocol,
        seed=3,
        command="",
        to_draw=Negatives(task="watch", ratio=ratio, distribution=kind),
        given=np.zeros(len(log), dtype=np.int8) if protocol == "given" else None,
    )


class Drawn:
    """Rows of a split by raw ids, with their events: those in the log, and the others."""

    def __init__(self, prepared: Prepared, split: str, log: Sequence[Row]) -> None:
        users, items = prepared.users["user"].to_pylist(), prepared.items["item"].to_pylist()
        part = prepared.splits[split]
        assert part.event is not None
        columns = (part.user, part.item, part.timestamp, part.labels["watch"], part.event)
        rows = [
            (users[u], items[i], int(t), int(y), int(e))
            for u, i, t, y, e in zip(*columns, strict=True)
        ]
        own = {(*row, event) for row, event in zip(log, events(log), strict=True)}
        self.logged = [row for row in rows if row in own]
        self.rows = [row for row in rows if row not in own]


def events(log: Sequence[Row]) -> list[int]:
    """The place of each row in its user's timeline."""
    order = sorted(range(len(log)), key=lambda row: (log[row][0], log[row][2], row))
    first = {user: order.index(n) for n in reversed(order) for user in [log[n][0]]}
    return [order.index(row) - first[log[row][0]] for row in range(len(log))]


def so_far(prepared: Prepared, split: str, log: Sequence[Row]) -> list[Row]:
    names = SPLITS[: SPLITS.index(split) + 1]
    return [row[:4] for name in names for row in Drawn(prepared, name, log).logged]


@given(rows, st.sampled_from(["time", "leave-last"]), st.sampled_from([0.5, 1.0, 3.0]))
@pytest.mark.parametrize("kind", KINDS)
def test_negatives_are_of_what_was_known_and_untouched_at_the_time_of_their_positive(
    kind: Distribution, log: list[Row], protocol: str, ratio: float
) -> None:
    prepared = prepare(log, protocol, ratio=ratio, kind=kind)
    for split in SPLITS:
        known, drawn = so_far(prepared, split, log), Drawn(prepared, split, log)
        positives = {(u, e): t for u, _, t, y, e in drawn.logged if y == 1}
        got: dict[tuple[int, int], list[int]] = {key: [] for key in positives}
        for user, item, when, label, event in drawn.rows:
            assert label == 0 and positives[user, event] == when
            assert any(i == item and t <= when for _, i, t, _ in known)
            assert not any((u, i) == (user, item) and t <= when for u, i, t, _ in known)
            got[user, event].append(item)
        for (user, event), items in got.items():
            assert len(set(items)) == len(items)
            when, own = positives[user, event], [e for u, e in got if u == user]
            touched = {i for u, i, t, _ in known if u == user and t <= when}
            free = {i for _, i, t, _ in known if t <= when} - touched
            wanted = int(np.ceil(ratio * len(own)))
            shares = {wanted // len(own), -(-wanted // len(own))}
            assert len(items) in {min(share, len(free)) for share in shares}


def naive(
    part: Examples, before: Examples, hashes: np.ndarray, to_draw: Negatives
) -> list[tuple[int, int]]:
    """Row and item of each negative: one positive after the other, with sets."""
    found = []
    log = list(
        zip(before.user.tolist(), before.item.tolist(), before.timestamp.tolist(), strict=True)
    )
    label, users = part.labels["watch"], part.user.tolist()
    assert part.event is not None
    one = [np.array([h], dtype=np.uint64) for h in hashes]

    def hashed(name: str, row: int) -> np.ndarray:
        assert part.event is not None
        return mix(randomness.key(3, name), one[users[row]], part.event[[row]].astype(np.uint64))

    for user in sorted(set(users)):
        mine = [row for row in range(len(part)) if users[row] == user and label[row] == 1]
        mine.sort(key=lambda row: int(hashed("drawn for", row)[0]))
        wanted = int(np.ceil(to_draw.ratio * len(mine)))
        for turn, row in enumerate(mine):
            when = int(part.timestamp[row])
            touched = {i for u, i, t in log if u == user and t <= when}
            first: dict[int, int] = {}
            for _, i, t in sorted(log, key=lambda r: (r[2], r[1])):
                first.setdefault(i, t)
            pool = [i for i, t in first.items() if t <= when]
            if to_draw.distribution == "popularity":
                pool = [i for _, i, t in sorted(log, key=lambda r: (r[2], r[1])) if t <= when]
            count = wanted // len(mine) + (turn < wanted % len(mine))
            count = min(count, len(set(pool) - touched))
            taken: dict[int, int] = {}
            for attempt in range(negatives.MOST_ROUNDS):
                for slot in range(count):
                    if slot not in taken:
                        number = np.array([attempt * 2**20 + slot], dtype=np.uint64)
                        half = int(mix(hashed("negatives", row), number)[0]) >> 32
                        item = pool[half * len(pool) >> 32]
                        if item not in touched and item not in taken.values():
                            taken[slot] = item
            left = sorted(set(pool) - touched - set(taken.values()))
            weight = {}
            for item in left:
                bits = int(mix(hashed("negatives", row), ~np.array([item], dtype=np.uint64))[0])
                weight[item] = -np.log1p(-((bits >> 11) * 2.0**-53)) / pool.count(item)
            left.sort(key=lambda item: weight[item])
            items = [*taken.values(), *left[: count - len(taken)]]
            found += [(row, item) for item in items]
    return sorted(found)


@given(rows, st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0, 2, 64]))
@pytest.mark.parametrize("kind", KINDS)
def test_the_arrays_draw_what_plain_loops_draw(
    kind: Distribution, log: list[Row], ratio: float, rounds: int
) -> None:
    """`rounds` of rejection, then exactly."""
    user, item, when, label = (np.array(column) for column in zip(*log, strict=True))
    user, item = user.astype(np.int32), item.astype(np.int32)
    event = np.array(events(log), dtype=np.int32)
    whole = Examples(
        user=user,
        item=item,
        labels={"watch": label.astype(np.float32)},
        timestamp=when,
        event=event,
    )
    part = whole.take(np.arange(len(log)) % 3 > 0)
    hashes = randomness.of_ids(pa.array(range(4)))
    to_draw = Negatives(task="watch", ratio=ratio, distribution=kind)
    with pytest.MonkeyPatch.context() as patch:
        for module in (timed_negatives, negatives):
            patch.setattr(module, "MOST_ROUNDS", rounds)
        drawn = timed_negatives.draw(part, whole, hashes, num_items=10, to_draw=to_draw, seed=3)
        expected = naive(part, whole, hashes, to_draw)
    assert part.event is not None and drawn.event is not None
    place = {
        (int(u), int(e)): row for row, (u, e) in enumerate(zip(part.user, part.event, strict=True))
    }
    found = [
        (place[int(u), int(e)], int(i))
        for u, e, i in zip(drawn.user, drawn.event, drawn.item, strict=True)
    ]
    assert sorted(found) == expected
    assert [int(part.timestamp[row]) for row, _ in found] == drawn.timestamp.tolist()
    assert set(drawn.labels["watch"].tolist()) <= {0.0}


@given(rows, st.integers(1, 12))
@pytest.mark.parametrize("kind", KINDS)
def test_rows_at_or_after_a_time_have_no_part_in_rows_before_it(
    kind: Distribution, log: list[Row], cut: int
) -> None:
    """With one negative for each positive, not even in what is drawn. All rows are training's."""
    found = []
    for some in (log, [row for row in log if row[2] < cut]):
        if not some:
            return
        prepared = prepare(some, kind=kind)
        drawn = Drawn(prepared, "train", some)
        found.append(sorted(row for row in (*drawn.rows, *drawn.logged) if row[2] < cut))
    assert found[0] == found[1]


def test_each_free_item_is_as_likely_or_as_likely_as_it_has_rows() -> None:
    """Items 0..4 with 1, 2, 3, 4 and 10 rows, then 4,000 users who touch item 9 alone."""
    log = [
        (1000 + n, item, 1, 1) for item, many in enumerate((1, 2, 3, 4, 10)) for n in range(many)
    ]
    log += [(9000 + n, 9, 2, 1) for n in range(4000)]
    for kind, rates in (("uniform", [1] * 5), ("popularity", [1, 2, 3, 4, 10])):
        prepared = prepare(log, kind=kind)  # type: ignore[arg-type]
        part = prepared.splits["train"]
        names = np.array(prepared.items["item"])
        chosen = (part.labels["watch"] == 0) & (part.timestamp == 2)
        counts = np.bincount(names[part.item[chosen]], minlength=10)
        assert counts.sum() == 4000 and counts[5:].sum() == 0
        expected = 4000 * np.array(rates) / sum(rates)
        assert (np.abs(counts[:5] - expected) < 5 * np.sqrt(expected)).all()


def test_who_has_touched_nearly_everything_gets_what_is_left_equally_often() -> None:
    """300 users touch 150 items but the last two: rejection takes 75 tries on average, and 64 are
    made. Both are drawn, about 150 times each; 5 standard errors are 5 sqrt(300 / 4) = 43."""
    items, users = 150, 300
    log = [(0, item, 1, 1) for item in range(items)]
    log += [
        (u, item, 2, 1 if item == 0 else 0)
        for u in range(1, users + 1)
        for item in range(items - 2)
    ]
    prepared = prepare(log)
    drawn = Counter[int]()
    names = prepared.items["item"].to_pylist()
    train = prepared.splits["train"]
    for row in np.flatnonzero(train.labels["watch"] == 0):
        if train.timestamp[row] == 2 and names[train.item[row]] >= items - 2:
            drawn[names[train.item[row]]] += 1
    assert set(drawn) == {items - 2, items - 1}
    assert sum(drawn.values()) == users and abs(drawn[items - 1] - users / 2) < 43


def test_what_cannot_be_drawn_is_reported() -> None:
    """At 1 the log has item 0 alone, which user 0 touched; at 2 user 0 has both."""
    log = [(0, 0, 1, 1), (0, 1, 2, 1), (1, 0, 3, 1), (1, 1, 4, 1), (1, 2, 5, 1)]
    prepared = prepare(log, "leave-last")
    # user 0: nothing at 1 and at 2. User 1: item 1 at 3, nothing at 4 and 5.
    assert prepared.report["missing_negatives"] == 4
