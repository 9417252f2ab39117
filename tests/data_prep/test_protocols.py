"""Time and leave-last: training's vocabulary, and negatives that tell nothing of the future."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.rows import Prepared, Raw
from data_prep.split import protocols
from recsys_moe.schema import SPLITS, Task
from tests.data_prep.samples import columns, prepare_subset, raw_rows, write_dat

TASK = Task(name="watch", kind="binary", column="watch")


def prepare(
    pairs: list[tuple[int, int]], times: list[int], protocol: str, *, seed: int = 0
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
        raw, protocol=protocol, seed=seed, command="", negative_task="watch"
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


@given(histories)
def test_negatives_are_new_in_every_split_and_from_items_known_by_then(
    case: tuple[list[tuple[int, int]], list[int], str],
) -> None:
    pairs, times, protocol = case
    prepared = prepare(pairs, times, protocol)
    sizes = (len(prepared.users), len(prepared.items))
    touched = {name: set(pairs_of(prepared, name, 1)) for name in SPLITS}
    drawn = {name: pairs_of(prepared, name, 0) for name in SPLITS}
    # Ids that training does not have share one index, so only pairs of known ids can be compared.
    known = [p for name in SPLITS for p in drawn[name] if p[0] < sizes[0] and p[1] < sizes[1]]
    assert len(set(known)) == len(known)
    assert set(known).isdisjoint(set.union(*touched.values()))
    assert {item for _, item in drawn["train"]} <= {item for _, item in touched["train"]}
    for name in SPLITS:
        positives = Counter(user for user, _ in pairs_of(prepared, name, 1))
        got = Counter(user for user, _ in drawn[name])
        assert all(got[user] <= positives[user] for user in got)


@given(histories)
def test_the_vocabulary_is_exactly_what_training_has(
    case: tuple[list[tuple[int, int]], list[int], str],
) -> None:
    prepared = prepare(*case)
    assert prepared.vocabulary == "train"
    train = prepared.splits["train"]
    for index, table in ((train.user, prepared.users), (train.item, prepared.items)):
        assert sorted(set(index.tolist())) == list(range(len(table)))


def test_a_user_with_room_gets_as_many_negatives_as_positives_in_each_split() -> None:
    # 5 users, 40 items; every user touches 10 of them, in the same stretch of time
    pairs = [(user, (user * 7 + 3 * n) % 40) for user in range(5) for n in range(10)]
    times = [1 + n for _ in range(5) for n in range(10)]
    prepared = prepare(pairs, times, "leave-last")
    assert {name: len(part) for name, part in prepared.splits.items()} == {
        "train": 5 * 8 * 2,
        "val": 5 * 2,
        "test": 5 * 2,
    }


def test_the_last_two_of_each_user_are_held_out_on_disk(tmp_path: Path) -> None:
    write_dat(tmp_path / "raw")
    schema = prepare_subset("1m", tmp_path / "raw", tmp_path / "out", protocol="leave-last")
    assert (schema.protocol, schema.vocabulary) == ("leave-last", "train")
    rows = raw_rows(tmp_path / "out")
    # user 1 rates items 10..17 in this order
    assert [row[1] for row in rows["test"] if row[0] == 1 and row[2] == 1] == [17]
    assert [row[1] for row in rows["val"] if row[0] == 1 and row[2] == 1] == [16]
    assert schema.labels["test"]["watch"]["positive"] == 8


def test_an_id_that_training_lacks_gets_the_index_after_the_last(tmp_path: Path) -> None:
    write_dat(tmp_path / "raw")
    schema = prepare_subset("1m", tmp_path / "raw", tmp_path / "out", protocol="time")
    # users come one after the other in time: floor(0.7875 * 36) = 28 rows are those of 1..6
    assert columns(tmp_path / "out", "users")["user"] == [1, 2, 3, 4, 5, 6]
    assert schema.user.size == 6
    for split in ("val", "test"):
        assert set(columns(tmp_path / "out", split)["user_index"]) == {6}


@pytest.mark.parametrize("protocol", ["time", "leave-last"])
def test_the_order_of_the_file_does_not_decide_who_is_held_out(protocol: str) -> None:
    pairs = [(user, (user + 2 * n) % 11) for user in range(4) for n in range(5)]
    times = [7] * len(pairs) if protocol == "leave-last" else list(range(1, len(pairs) + 1))
    backwards = prepare(pairs[::-1], times[::-1], protocol)
    for name in SPLITS:
        forwards = prepare(pairs, times, protocol)
        assert sorted(pairs_of(forwards, name, 1)) == sorted(pairs_of(backwards, name, 1))
