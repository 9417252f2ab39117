"""Book-Crossing (Ziegler, McNee, Konstan, Lausen, WWW 2005): `recsys-moe prepare books`.

The papers that use it say "at least 5 records"; the defaults here (more than 5, users first, one
pass, all records) are the reading that comes closest to their 18,960 users, 31,070 books and
556,724 records. That `watch` means explicit rather than implicit is an inference too.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.compute as pc

from data_prep import ids
from data_prep.books import features as book_features
from data_prep.features.spec import chosen, features_option
from data_prep.options import at_least, one_of
from data_prep.read import quoted_lines
from data_prep.read.bad_rows import OPTION, BadRows
from data_prep.read.raw_files import RawFiles
from data_prep.rows import UNKNOWN_TIME, Raw, rating_labels, rating_tasks
from data_prep.split import protocols, splits
from data_prep.write import writer
from recsys_moe.schema import DataError, Schema

log = logging.getLogger("recsys_moe.prepare")
RATINGS_FILES = ("BX-Book-Ratings.csv", "Ratings.csv")
HIGHEST = 10
_COLUMNS: dict[str, tuple[str, ...]] = {
    "user": ("User-ID",),
    "item": ("ISBN",),
    "rating": ("Book-Rating", "Rating"),
}


def prepare(
    source: str | Path,
    out: Path,
    *,
    min_user: int = 5,
    min_item: int = 5,
    strict: bool = True,
    order: Literal["user-item", "item-user"] = "user-item",
    passes: int = 1,
    rows: Literal["all", "explicit"] = "all",
    repair_isbn: bool = False,
    features: str | None = None,
    fractions: str | None = None,
    skip_bad_rows: bool = False,
    seed: int = 0,
    force: bool = False,
) -> Schema:
    """Read the ratings (books and users too where their files are there), filter, split.

    `features`: "all" or names by comma, of author, publisher, year, age, country. `fractions`:
    TRAIN,VAL,TEST, as in "0.8,0.1,0.1"; without it 70/15/15. `skip_bad_rows` leaves ratings off the
    scale out; lines without their fields always are.

    `strict`: keep users and books with more than min_user / min_item records, else with at least
    as many. `rows`: which records count for that; implicit ones stay in the data either way.
    `passes` 0 filters until nothing changes. Tasks: `watch` (1 explicit, 0 implicit) and `rating`
    (1 to 10, explicit records only). Raises DataError for unusable data, ConfigError for options.
    """
    for option, value in (("min-user", min_user), ("min-item", min_item), ("passes", passes)):
        at_least(f"--{option}", value, 0)
    one_of("--order", order, ("user-item", "item-user"))
    one_of("--rows", rows, ("all", "explicit"))
    protocols.check_options("paper", seed, fractions)
    chosen(features, book_features.OFFERED)
    writer.check_target(Path(out), force, source=source)
    files = RawFiles(Path(source))
    records = _without_repeats(_read(files, repair_isbn, BadRows(skip_bad_rows)))
    least = {"user": min_user + strict, "item": min_item + strict}
    records = _filter(
        records, least, order.split("-"), passes=passes, explicit_only=rows == "explicit"
    )
    prepared = protocols.prepare_rows(
        _with_features(records, files, repair_isbn, features),
        protocol="paper",
        seed=seed,
        command=(
            f"prepare books --min-user {min_user} --min-item {min_item} "
            f"--{'strict' if strict else 'no-strict'} --order {order} --passes {passes} "
            f"--rows {rows}{' --repair-isbn' if repair_isbn else ''}{features_option(features)}"
            f"{'' if fractions is None else f' --fractions {fractions}'}"
            f"{f' {OPTION}' if skip_bad_rows else ''} --seed {seed}"
        ),
        holdout=splits.Holdout.of(fractions, splits.BOOKS),
    )
    return writer.write(prepared, Path(out), force=force)


def _read(files: RawFiles, repair_isbn: bool, bad: BadRows) -> Raw:
    """One row per record that is whole; a rating of 0 marks an implicit one."""
    name = files.find(*RATINGS_FILES) or RATINGS_FILES[0]
    label = files.label(name)
    lines = quoted_lines.read(files, name, _COLUMNS)
    whole = [
        pc.match_substring_regex(lines.table[key], r"^\d{1,18}$") for key in ("user", "rating")
    ]
    named = pc.not_equal(pc.utf8_trim_whitespace(lines.table["item"]), "")
    lines = quoted_lines.keep(lines, pc.and_(pc.and_(*whole), named), label)
    rating = lines.table["rating"].cast("int64").to_numpy()
    line, high = lines.table["line"], rating > HIGHEST
    bad.check(
        high,
        lambda row: (
            f"{label}, line {line[row]}: the rating must be in 0..{HIGHEST}, got {rating[row]}"
        ),
    )
    table, rating = lines.table.filter(~high), rating[~high]
    book, repaired = table["item"].combine_chunks(), 0
    if repair_isbn:
        book, repaired = book_features.repair_isbns(book)
    rating = np.where(rating > 0, rating, np.nan)
    return Raw(
        name="books",
        user=table["user"].cast("int64").combine_chunks(),
        item=book,
        labels=rating_labels(rating),
        timestamp=np.full(len(rating), UNKNOWN_TIME, dtype=np.int64),
        tasks=rating_tasks(1.0, float(HIGHEST)),
        file=label,
        report={
            "records_read": len(rating),
            "broken_lines": lines.broken,
            "repaired_isbns": repaired,
            **bad.report(len(rating)),
        },
    )


def _without_repeats(records: Raw) -> Raw:
    """One record per user and book: the highest rating, so explicit before implicit."""
    (user, _), (item, items) = ids.encode(records.user), ids.encode(records.item)
    best_first = np.argsort(-np.nan_to_num(records.labels["rating"]), kind="stable")
    rows = best_first[ids.one_per_value(ids.pair_keys(user, item, len(items))[best_first])]
    return records.take(np.sort(rows), dropped_repeats=len(best_first) - len(rows))


def _filter(
    records: Raw, least: dict[str, int], order: list[str], *, passes: int, explicit_only: bool
) -> Raw:
    """Records of the users and books that have enough of them, each count taken in `order`."""
    codes = {"user": ids.encode(records.user)[0], "item": ids.encode(records.item)[0]}
    explicit = records.labels["watch"] == 1
    counted = explicit if explicit_only else np.ones_like(explicit)
    kept = np.ones_like(explicit)
    done, before = 0, -1
    while before != kept.sum() and (passes == 0 or done < passes):
        done, before = done + 1, kept.sum()
        for column in order:
            index = codes[column]
            count = np.bincount(index[kept & counted], minlength=len(index))
            kept &= count[index] >= least[column]
    if not kept.any():
        raise DataError(
            f"{records.file}: the filter leaves no records; lower --min-user or --min-item"
        )
    log.info("%d records, explicit share %.3f", kept.sum(), explicit[kept].mean())
    counts = {"records": int(kept.sum()), "explicit_records": int(explicit[kept].sum())}
    return records.take(np.flatnonzero(kept), **counts)


def _with_features(records: Raw, files: RawFiles, repair_isbn: bool, names: str | None) -> Raw:
    users, items, broken = book_features.read(files, repair_isbn)
    asked = book_features.chosen(names, users, items)
    return replace(
        records,
        users=book_features.with_users(users, asked),
        items=book_features.with_books(items, asked),
        features=asked,
        sources=files.sources,
        report={**records.report, **broken},
    )
