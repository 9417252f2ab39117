"""Time and leave-last: training's vocabulary, negatives that tell nothing of the future; memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import ids, table
from data_prep.rows import UNKNOWN_TIME, Prepared, Raw, rating_labels, rating_tasks
from data_prep.split import protocols
from data_prep.split.negatives import Negatives
from data_prep.split.splits import Splits
from recsys_moe.schema import SPLITS, ConfigError, Task
from tests.data_prep.samples import IDS, columns, hashes, prepare_subset, save, write_dat

WATCH = Negatives(task="watch")
TASK = Task(name="watch", kind="binary", column="watch")


def prepare(
    pairs: list[tuple[int, int]],
    times: list[int],
    protocol: str,
    *,
    seed: int = 0,
    to_draw: Negatives = WATCH,
    given: Splits | None = None,
) -> Prepared:
    user, item = (pa.array([pair[n] for pair in pairs], pa.int64()) for n in (0, 1))
    raw = Raw(
        name="x",
        user=user,
        item=item,
        labels={"watch": np.ones(len(pairs), np.float32)},
        timestamp=np.array(times),
        tasks=(TASK,),
        file="x",
    )
    return protocols.prepare_rows(
        raw, protocol=protocol, seed=seed, command="", to_draw=to_draw, given=given
    )


def pairs_of(prepared: Prepared, split: str, label: int) -> list[tuple[int, int]]:
    part = prepared.splits[split]
    chosen = part.labels["watch"] == label
    return list(zip(part.user[chosen].tolist(), part.item[chosen].tolist(), strict=True))


histories = st.sets(
    st.tuples(st.integers(0, 4), st.integers(0, 7)), min_size=5, max_size=30
).flatmap(
    lambda pairs: st.tuples(
        st.just(sorted(pairs)),
        st.lists(st.integers(1, 40), min_size=len(pairs), max_size=len(pairs)),
        st.sampled_from(["time", "leave-last"]),
    )
)


@given(histories, st.randoms(use_true_random=False))
def test_without_times_negatives_are_untouched_so_far_and_from_items_known_by_then(
    case: tuple[list[tuple[int, int]], list[int], str], random: Random
) -> None:
    pairs = case[0]
    given = np.sort([0, 1, 2, *(random.randrange(3) for _ in pairs[3:])]).astype(np.int8)
    prepared = prepare(pairs, [UNKNOWN_TIME] * len(pairs), "paper", given=given)
    touched: set[tuple[int, int]] = set()
    for name in SPLITS:
        touched |= set(pairs_of(prepared, name, 1))
        drawn = pairs_of(prepared, name, 0)
        assert len(set(drawn)) == len(drawn)
        assert set(drawn).isdisjoint(touched)
        assert {item for _, item in drawn} <= {item for _, item in touched}
        positives = Counter(user for user, _ in pairs_of(prepared, name, 1))
        got = Counter(user for user, _ in drawn)
        assert all(got[user] <= positives[user] for user in got)


@pytest.mark.parametrize("protocol", ["time", "leave-last", "given"])
def test_training_does_not_depend_on_what_comes_later(protocol: str, tmp_path: Path) -> None:
    """Other items in the held-out rows leave the bytes of train/ what they are."""
    rng = np.random.default_rng(0)
    when = np.arange(1, 401)
    user, item = np.tile(np.arange(20), 20), rng.permutation(400) % 37
    held = when > (315 if protocol == "time" else 360)  # floor(.7875 * 400); two rows of each
    found = []
    for name, later in (("a", item), ("b", np.where(held, 40 + when % 37, item))):
        data = pd.DataFrame({"who": user, "what": later, "clicked": 1, "stars": 1.0, "when": when})
        options: dict[str, Any] = {"timestamp": "when", "negatives": "per-user", **IDS}
        options |= {"duplicates": "keep"}
        if protocol == "given":
            parts = {"train": when <= 360, "val": held & (when <= 380), "test": when > 380}
            for split, rows in parts.items():
                options[split] = save(data[rows], tmp_path / f"{name}-{split}.csv")
        else:
            options |= {"input": save(data, tmp_path / f"{name}.csv"), "protocol": protocol}
        table.prepare(tmp_path / name, **options)
        found.append(hashes(tmp_path / name / "train"))
        assert 0.0 in columns(tmp_path / name, "train")["watch"]
    assert found[0] == found[1]


def test_a_later_positive_is_drawn_as_often_as_any_other_item() -> None:
    """1,000 users, 21 items: each watches one item, then one of ten others, then another item."""
    users, items = 1000, 21
    watched = [(u, (u + step) % items) for u in range(users) for step in (0, 1 + u % 10, 11)]
    prepared = prepare(watched, [1, 2, 3] * users, "leave-last")
    drawn = set(pairs_of(prepared, "train", 0))
    hits = len(drawn & set(pairs_of(prepared, "val", 1) + pairs_of(prepared, "test", 1)))
    # one negative for each user, from 20 items, of which 2 come later: 100, five standard
    # errors are 5 sqrt(1000 * .1 * .9) = 47
    assert len(drawn) == users and abs(hits - 100) < 47


@given(histories)
def test_the_vocabulary_is_exactly_what_training_has(
    case: tuple[list[tuple[int, int]], list[int], str],
) -> None:
    prepared = prepare(*case)
    assert prepared.vocabulary == "train"
    train = prepared.splits["train"]
    assert prepared.trained is not None
    for index, trained in zip((train.user, train.item), prepared.trained, strict=True):
        assert sorted(set(index.tolist())) == list(range(trained))
    for n, ids_ in enumerate((prepared.users["user"], prepared.items["item"])):
        trained, names = prepared.trained[n], ids_.to_pylist()
        assert sorted(names) == sorted({pair[n] for pair in case[0]})
        for part in (names[:trained], names[trained:]):
            assert part == sorted(part)


def test_ids_that_training_lacks_come_after_the_others(tmp_path: Path) -> None:
    write_dat(tmp_path / "raw")
    schema = prepare_subset("1m", tmp_path / "raw", tmp_path / "out", protocol="time")
    # users come one after the other in time: floor(0.7875 * 36) = 28 rows are those of 1..6
    assert columns(tmp_path / "out", "users")["user"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (schema.user.trained, schema.user.size) == (6, 8)
    found = {split: set(columns(tmp_path / "out", split)["user_index"]) for split in SPLITS}
    assert found["val"] | found["test"] == {6, 7} and max(found["train"]) == 5


@given(histories)
def test_events_number_the_rows_of_a_user_by_time_and_then_by_the_input(
    case: tuple[list[tuple[int, int]], list[int], str],
) -> None:
    pairs, times, protocol = case
    known = sorted({user for user, _ in pairs})
    order = sorted(range(len(pairs)), key=lambda row: (times[row], row))
    expected = {
        (user, event): times[row]
        for user in known
        for event, row in enumerate(row for row in order if pairs[row][0] == user)
    }
    found: list[tuple[Any, ...]] = []
    prepared = prepare(pairs, times, protocol)
    users = prepared.users["user"].to_pylist()
    for part in prepared.splits.values():
        assert part.event is not None and part.event.dtype == np.int32
        rows = list(zip(part.user, part.event, part.timestamp, strict=True))
        for user, event, when in rows:
            assert expected[users[user], int(event)] == when  # of a negative too
        found += [rows[row][:2] for row in np.flatnonzero(part.labels["watch"] == 1)]
    assert sorted((users[user], int(event)) for user, event in found) == sorted(expected)


def test_equal_times_leave_the_last_row_of_the_input_out() -> None:
    prepared = prepare([(0, 5), (0, 3), (0, 9), (0, 4)], [7, 7, 7, 2], "leave-last")
    assert prepared.items["item"].to_pylist() == [4, 5, 3, 9]  # training: 4 at 2, 5 at 7
    events = {name: part.event for name, part in prepared.splits.items()}
    assert events["val"] is not None and set(events["val"].tolist()) == {2}
    assert events["test"] is not None and set(events["test"].tolist()) == {3}


@pytest.mark.parametrize("clock", ["seconds", "milliseconds"])
def test_split_files_with_times_have_events_across_the_files(clock: str, tmp_path: Path) -> None:
    when = np.array([30, 10, 20, 20, 40, 50])
    if clock == "milliseconds":  # all in one second, in this order
        when = 1_600_000_000_000 + when
    data = pd.DataFrame({"who": 1, "what": range(6), "clicked": 1, "stars": 2.0, "when": when})
    parts = {"train": data[:3], "val": data[3:5], "test": data[5:]}
    options: dict[str, Any] = {
        split: save(rows, tmp_path / f"{split}.csv") for split, rows in parts.items()
    }
    schema = table.prepare(tmp_path / "out", **options, **IDS, timestamp="when")
    assert schema.events
    events = {split: columns(tmp_path / "out", split)["event"] for split in SPLITS}
    assert sorted(map(int, events["train"])) == [0, 1, 3]  # type: ignore[call-overload]
    assert sorted(map(int, events["val"])) == [2, 4] and events["test"] == [5]  # type: ignore[call-overload]


@pytest.mark.parametrize("options", [{}, {"protocol": "hash"}])
def test_random_splits_have_no_events(options: dict[str, str], tmp_path: Path) -> None:
    write_dat(tmp_path / "raw")
    schema = prepare_subset("1m", tmp_path / "raw", tmp_path / "out", **options)
    assert not schema.events and "events" not in schema.to_json()
    assert "event" not in columns(tmp_path / "out", "train")


def test_a_split_file_with_an_unknown_time_leaves_out_events(tmp_path: Path) -> None:
    data = pd.DataFrame({"who": 1, "what": range(6), "clicked": 1, "stars": 2.0, "when": range(6)})
    data.loc[2, "when"] = np.nan
    parts = {"train": data[:3], "val": data[3:5], "test": data[5:]}
    options: dict[str, Any] = {
        split: save(rows, tmp_path / f"{split}.csv") for split, rows in parts.items()
    }
    assert not table.prepare(tmp_path / "out", **options, **IDS, timestamp="when").events


def test_a_task_must_not_be_named_like_the_column_of_events(tmp_path: Path) -> None:
    data = pd.DataFrame({"who": 1, "what": range(6), "clicked": 1, "when": range(6)})
    options: dict[str, Any] = {"input": save(data, tmp_path / "x.csv"), "user": "who"}
    options |= {"item": "what", "tasks": ["event:binary=clicked"], "timestamp": "when"}
    with pytest.raises(ConfigError, match="got 'event'; choose another name"):
        table.prepare(tmp_path / "out", protocol="time", **options)
    table.prepare(tmp_path / "out", protocol="paper", fractions="1/3,1/3,1/3", **options)


@pytest.mark.parametrize("protocol", ["time", "leave-last"])
def test_the_order_of_the_file_does_not_decide_who_is_held_out(protocol: str) -> None:
    """Where all times are different."""
    pairs = [(user, (user + 2 * n) % 11) for user in range(4) for n in range(5)]
    times = list(range(1, len(pairs) + 1))
    backwards = prepare(pairs[::-1], times[::-1], protocol)
    for name in SPLITS:
        forwards = prepare(pairs, times, protocol)
        assert sorted(pairs_of(forwards, name, 1)) == sorted(pairs_of(backwards, name, 1))


def test_the_key_of_a_pair_is_right_beyond_32_bits() -> None:
    user, item = np.array([50_000], dtype=np.int32), np.array([7], dtype=np.int32)
    assert ids.pair_keys(user, item, 60_000).tolist() == [50_000 * 60_000 + 7]  # 3e9 > 2^31


@pytest.mark.parametrize(("protocol", "bound"), [("paper", 100), ("time", 160)])
def test_splitting_a_rating_takes_few_bytes(protocol: str, bound: int) -> None:
    """Its columns and those of its negative have 2 x (4 + 4 + 4 + 4 + 8) = 48 bytes."""
    raw = ratings(users=2_000, each=100)
    tracemalloc.start()
    try:
        prepared = protocols.prepare_rows(
            raw, protocol=protocol, seed=0, command="", to_draw=Negatives(task="watch")
        )
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    written = sum(map(len, prepared.splits.values()))
    assert written == 2 * 200_000 - (protocol == "time")  # the first row knows no other item
    assert most / 200_000 <= bound


def ratings(users: int, each: int) -> Raw:
    """`each` different items of 1,000 for every user."""
    count = users * each
    user = np.repeat(np.arange(users), each)
    item = (user * 7 + np.tile(np.arange(each), users) * 3) % 1_000
    return Raw(
        name="made up",
        user=pa.array(user),
        item=pa.array(item),
        labels=rating_labels(np.ones(count)),
        timestamp=np.random.default_rng(0).integers(1, 10**9, count),
        tasks=rating_tasks(1.0, 5.0),
        file="none",
    )
