"""From what a source read to what the writer writes: index, draw negatives, split.

`paper`       a random split of all rows, negatives included; every id is known (vocabulary all).
`hash`        the same, decided for each pair on its own (see data_prep/split/hash_split.py).

`time`        one cut in time for everybody; `leave-last`: each user's last two rows held out.
`given`       the split that the files came in.
Under these three the vocabulary is the training rows' only, and each negative is drawn from what
was known at the time of a positive: among the items that had a row by then in this split or one
before it, without those that its user had touched (see data_prep/split/timed_negatives.py). So a
negative may be a positive later, or be drawn again, as often as any item: avoiding later positives
would tell a model which they are. Without times, what was known is that at the end of the split.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep import ids
from data_prep.features.spec import of_entity
from data_prep.features.training import Training, unused, with_features
from data_prep.ids import Ints, pair_keys, sorted_distinct
from data_prep.options import at_least, one_of
from data_prep.rows import UNKNOWN_TIME, Examples, Prepared, Raw, joined, unlabelled
from data_prep.split import hash_split, negatives, randomness, splits, timed_negatives
from data_prep.split.hash_split import IdHashes
from data_prep.split.negatives import Negatives, OneStream
from data_prep.split.randomness import stream
from recsys_moe.kinds import positive_task
from recsys_moe.schema import SPLITS, ConfigError, DataError, Task

log = logging.getLogger("recsys_moe.prepare")
PROTOCOLS = ("paper", "hash", "time", "leave-last")
ALL_KNOWN = ("paper", "hash")
"""Protocols whose vocabulary is that of all rows."""


def prepare_rows(
    raw: Raw,
    *,
    protocol: str,
    seed: int,
    command: str,
    to_draw: Negatives | None = None,
    holdout: splits.Holdout = splits.MOVIELENS,
    given: splits.Splits | None = None,
    repeats: bool = False,
) -> Prepared:
    """Apply `protocol` (or the split `given`) to `raw`.

    `to_draw`: the negatives that are drawn for every user; None draws none.
    Raises DataError when a protocol needs timestamps that are not there.
    """
    (user, user_ids), (item, item_ids) = ids.encode(raw.user), ids.encode(raw.item)
    pa.default_memory_pool().release_unused()  # what reading took: more than the rows do
    rows = raw.examples(user, item)
    log.info("%d rows of %d users and %d items", len(rows), len(user_ids), len(item_ids))
    sizes = (len(user_ids), len(item_ids))
    drawn_for: Sequence[Examples] = [rows]
    if given is None and protocol == "hash":
        hashes = IdHashes(randomness.of_ids(user_ids), randomness.of_ids(item_ids))
        placed = hash_split.place(rows, hashes, to_draw=to_draw, holdout=holdout, seed=seed)
        parts = _parts([placed.rows], placed.split)
    elif given is None and protocol == "paper":
        pieces = [rows, _negatives(rows, rows, sizes, to_draw, seed)] if to_draw else [rows]
        split = _random_split(pieces, raw.tasks, holdout, seed, sizes[1] if repeats else None)
        parts = _parts(pieces, split, seed)
    else:
        rows = _with_events(raw, rows)
        split = _ordered_split(raw, rows, protocol, holdout) if given is None else given
        parts = _parts([rows], split)
        _log_repeats(parts, sizes[1], repeats, given is not None)
        drawn_for = list(parts.values())
        parts = _in_random_order(parts, user_ids, sizes[1], to_draw=to_draw, seed=seed)
    known = {"user": (raw.users, user_ids), "item": (raw.items, item_ids)}
    report = raw.report | unused(known, raw.features)
    drawn = sum(map(len, parts.values())) - len(rows)
    report |= negatives.report(to_draw, drawn_for, drawn) if to_draw else {}
    prepared = Prepared(
        name=raw.name,
        protocol=protocol if given is None else "given",
        vocabulary="all",
        tasks=raw.tasks,
        splits=parts,
        users=ids.align(raw.users, "user", user_ids),
        items=ids.align(raw.items, "item", item_ids),
        seeds={"negatives": seed, "split": seed},
        sources=raw.sources,
        command=command,
        report=report,
        weighted=raw.weight is not None,
        repeats=repeats,
        negatives=to_draw.distribution if to_draw else None,
    )
    training = Training.of(parts["train"], sizes, of_entity(raw.features, "context"))
    prepared = with_features(prepared, raw.features, training)
    return prepared if prepared.protocol in ALL_KNOWN else _trained_first(prepared)


def check_options(protocol: str, seed: int, fractions: str | None = None) -> None:
    """Raises ConfigError for an unknown protocol, a wrong seed, or wrong fractions."""
    one_of("--protocol", protocol, PROTOCOLS)
    at_least("--seed", seed, 0)
    if fractions is not None and protocol == "leave-last":
        raise ConfigError(
            "--fractions must be omitted for --protocol leave-last: it holds out two rows per user"
        )
    splits.Holdout.of(fractions, splits.MOVIELENS)


def _parts(
    pieces: Sequence[Examples], split: splits.Splits, seed: int | None = None
) -> dict[str, Examples]:
    """The rows of each split, in random order where there is a `seed`."""

    def places(code: int, name: str) -> Ints:
        some = np.flatnonzero(split == code)
        return some if seed is None else _shuffled(some, name, seed)

    return {name: joined(pieces, places(code, name)) for code, name in enumerate(SPLITS)}


def _random_split(
    pieces: Sequence[Examples],
    tasks: tuple[Task, ...],
    holdout: splits.Holdout,
    seed: int,
    num_items: int | None,
) -> splits.Splits:
    """Rows of one pair go where the first of them goes; `num_items` None: no pair has several."""
    classes = _classes(pieces, tasks)
    if num_items is None:
        return splits.stratified(classes, holdout, stream(seed, "split"))
    pairs = np.concatenate([pair_keys(part.user, part.item, num_items) for part in pieces])
    firsts = ids.one_per_value(pairs)
    split = splits.stratified(classes[firsts], holdout, stream(seed, "split"))
    order = np.argsort(pairs[firsts], kind="stable")
    return split[order[np.searchsorted(pairs[firsts][order], pairs)]]


def _log_repeats(parts: dict[str, Examples], num_items: int, repeats: bool, warn: bool) -> None:
    """How many rows have a pair that the training rows have, where pairs may repeat."""
    keys = {name: pair_keys(part.user, part.item, num_items) for name, part in parts.items()}
    for name in SPLITS[1:] if repeats else ():
        again = int(np.isin(keys[name], keys["train"]).sum())
        if again:
            text = "%s: %d of %d rows have a (user, item) pair of the training rows"
            level = logging.WARNING if warn else logging.INFO
            log.log(level, text, name, again, len(parts[name]))


def _negatives(
    rows: Examples,
    so_far: Examples,
    sizes: tuple[int, int],
    to_draw: Negatives,
    seed: int,
    split: str = "",
) -> Examples:
    """Those for `rows`, of items of the rows `so_far` that a user has not touched in them."""
    num_users, num_items = sizes
    rows_of_item = np.bincount(so_far.item, minlength=num_items)
    items = np.flatnonzero(rows_of_item)
    place = np.zeros(num_items, dtype=np.int64)
    place[items] = np.arange(len(items))
    keys = negatives.draw(
        to_draw.wanted(rows, rows.user, num_users),
        sorted_distinct(pair_keys(so_far.user, place[so_far.item], len(items))),
        len(items),
        to_draw.draws(OneStream(stream(seed, f"negatives {split}".rstrip())), rows_of_item[items]),
    )
    user, item = np.divmod(keys, max(1, len(items)))
    positives = to_draw.positives(rows)
    order = stream(seed, f"drawn for {split}".rstrip()).permutation(len(positives))
    sources = negatives.drawn_for(user, positives, rows.user[positives], order)
    return unlabelled(user, items[item], rows, to_draw.task, sources)


def _classes(pieces: Sequence[Examples], tasks: tuple[Task, ...]) -> NDArray[np.int8]:
    """Labels of the first task with positives; 2 where one is missing, to keep its share."""
    number = positive_task(tasks)
    if number is None:
        return np.zeros(sum(map(len, pieces)), dtype=np.int8)
    labels = np.concatenate([piece.labels[tasks[number].name] for piece in pieces])
    return np.nan_to_num(labels, nan=2).astype(np.int8)


def _with_events(raw: Raw, rows: Examples) -> Examples:
    """`rows` with their places in the timelines of their users, where all have a time."""
    if (rows.timestamp == UNKNOWN_TIME).any():
        return rows
    moments = splits.moments(raw.timestamp, raw.nanoseconds)
    return replace(rows, event=splits.events(rows.user, moments))


def _ordered_split(
    raw: Raw, rows: Examples, protocol: str, holdout: splits.Holdout
) -> splits.Splits:
    unknown = int((raw.timestamp == UNKNOWN_TIME).sum())
    if unknown:
        raise DataError(
            f"--protocol {protocol} needs the time of every row, but {unknown} of {len(rows)} "
            f"rows of {raw.file} have no timestamp; remove these rows, or use --protocol paper"
        )
    if protocol == "time":
        return splits.by_time(splits.moments(raw.timestamp, raw.nanoseconds), holdout)
    assert rows.event is not None
    return splits.leave_last(rows.user, rows.event)


def _in_random_order(
    parts: dict[str, Examples],
    user_ids: pa.Array,
    num_items: int,
    *,
    to_draw: Negatives | None,
    seed: int,
) -> dict[str, Examples]:
    """Every split with its negatives, shuffled."""
    found = {}
    bare = [
        Examples(user=p.user, item=p.item, labels={}, timestamp=p.timestamp) for p in parts.values()
    ]
    has_order = to_draw is not None and parts["train"].event is not None
    hashes = randomness.of_ids(user_ids) if has_order else None
    for code, (name, part) in enumerate(parts.items()):
        pieces = [part]
        if to_draw is not None:
            so_far = joined(bare[: code + 1])
            pieces.append(
                _negatives(part, so_far, (len(user_ids), num_items), to_draw, seed, name)
                if hashes is None
                else timed_negatives.draw(
                    part, so_far, hashes, num_items=num_items, to_draw=to_draw, seed=seed
                )
            )
        found[name] = joined(pieces, _shuffled(np.arange(sum(map(len, pieces))), name, seed))
    return found


def _shuffled(places: Ints, split: str, seed: int) -> Ints:
    """The places of a split's rows in the order in which they are written."""
    return stream(seed, f"order {split}").permutation(places)


def _trained_first(prepared: Prepared) -> Prepared:
    """The ids that training has come first; the others are out of the vocabulary of a model."""
    train = prepared.splits["train"]
    users, user_order, user_place = ids.trained_first(train.user, len(prepared.users))
    items, item_order, item_place = ids.trained_first(train.item, len(prepared.items))
    log.info(
        "%d users and %d items have training rows; the others are out of vocabulary",
        *(users, items),
    )
    return replace(
        prepared,
        vocabulary="train",
        splits={
            name: replace(part, user=user_place[part.user], item=item_place[part.item])
            for name, part in prepared.splits.items()
        },
        users=prepared.users.take(pa.array(user_order)),
        items=prepared.items.take(pa.array(item_order)),
        trained=(users, items),
    )
