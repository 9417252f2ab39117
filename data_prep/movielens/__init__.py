"""MovieLens (Harper and Konstan 2015, doi 10.1145/2827872): `recsys-moe prepare movielens`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.features.spec import Wanted, as_read, chosen, features_option, wanted
from data_prep.movielens import files as movielens_files
from data_prep.options import one_of
from data_prep.read import download
from data_prep.read.bad_rows import OPTION, BadRows
from data_prep.read.raw_files import RawFiles
from data_prep.rows import UNKNOWN_TIME, Raw, rating_labels, rating_tasks
from data_prep.split import protocols, splits
from data_prep.split.negatives import Negatives
from data_prep.write import writer
from recsys_moe.schema import ConfigError, DataError, Schema

_BASE = "https://files.grouplens.org/datasets/movielens"
_HIGHEST = 5.0
_100K, _DAT, _CSV = (
    ("u.data", "u.item"),
    ("ratings.dat", "movies.dat"),
    ("ratings.csv", "movies.csv"),
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One release: how it is laid out, how much there is, and its rating scale."""

    folder: str
    """The folder inside the zip."""
    ratings: int
    """Published number of ratings; 0 for a release that changes over time."""
    low: float
    """Lowest rating, and the step of the scale."""
    files: tuple[str, str]
    """With the ratings and with the movies."""
    users: str | None = None
    """The file that describes the users, where there is one."""


VARIANTS = {
    "100k": Variant(folder="ml-100k", ratings=100_000, low=1.0, files=_100K, users="u.user"),
    "1m": Variant(folder="ml-1m", ratings=1_000_209, low=1.0, files=_DAT, users="users.dat"),
    "10m": Variant(folder="ml-10M100K", ratings=10_000_054, low=0.5, files=_DAT),
    "latest-small": Variant(folder="ml-latest-small", ratings=0, low=0.5, files=_CSV),
    "20m": Variant(folder="ml-20m", ratings=20_000_263, low=0.5, files=_CSV),
    "25m": Variant(folder="ml-25m", ratings=25_000_095, low=0.5, files=_CSV),
    "32m": Variant(folder="ml-32m", ratings=32_000_204, low=0.5, files=_CSV),
}
ITEM_FEATURES = (
    wanted("item", "genres", "multi"),
    wanted("item", "year", "numeric", movielens_files.RELEASED),
)
_GENDER, _OCCUPATION = (wanted("user", name, "categorical") for name in ("gender", "occupation"))
_WORK = wanted("user", "occupation", "categorical", movielens_files.WORK)
USER_FEATURES = {
    "100k": (_GENDER, wanted("user", "age", "numeric"), _OCCUPATION),
    "1m": (_GENDER, wanted("user", "age", "categorical"), _WORK),  # ages of seven groups
}
"""Of the releases that know their users."""
SHA256 = {
    "100k": "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
    "1m": "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
    "10m": "813c411ccb6122564edfe752e7f80c4dcc5aa25fa94c93622f6877a7ba252862",
    # The release of September 2018. The publisher may replace it: then pass the new checksum.
    "latest-small": "696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
    "20m": "96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
    "25m": "8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa",
    "32m": "e4a68655d7386b8f95f2f2424b2ff975dfdd15ffd59e0d864a14dca43e99d6ee",
}
"""Of the archives on the publisher's server."""


def prepare(
    variant: str,
    source: str | Path | None,
    out: Path,
    *,
    features: str | None = None,
    protocol: str = "paper",
    fractions: str | None = None,
    skip_bad_rows: bool = False,
    seed: int = 0,
    force: bool = False,
    checksum: str | None = None,
    partial: bool = False,
) -> Schema:
    """Read a release, draw one unrated movie per rating for each user, split, and write `out`.

    `source`: a folder, a zip or a URL; None downloads from the publisher. `checksum` (hex SHA-256
    or MD5) replaces the pinned one for a download. `partial` accepts fewer ratings than
    were published. `features`: "all" or names by comma, of genres, year, and in 100k and 1m gender,
    age, occupation. `fractions`: TRAIN,VAL,TEST, as in "0.8,0.1,0.1". `skip_bad_rows` leaves lines
    out that cannot be used, counts them and lists the first few. Tasks: `watch` (1 for rated, 0
    for drawn) and `rating` (missing for drawn). Raises DataError for unusable data, ConfigError for
    options.
    """
    one_of("--variant", variant, VARIANTS)
    protocols.check_options(protocol, seed, fractions)
    asked = chosen(features, (*USER_FEATURES.get(variant, ()), *ITEM_FEATURES))
    writer.check_target(Path(out), force, source=source)
    bad = BadRows(skip_bad_rows)
    files = RawFiles(_local(variant, source, checksum), VARIANTS[variant].folder)
    prepared = protocols.prepare_rows(
        _raw(variant, files, partial, bad, asked),
        protocol=protocol,
        seed=seed,
        command=(
            f"prepare movielens --variant {variant}{features_option(features)}"
            f" --protocol {protocol}"
            f"{'' if fractions is None else f' --fractions {fractions}'}"
            f"{f' {OPTION}' if skip_bad_rows else ''} --seed {seed}"
        ),
        holdout=splits.Holdout.of(fractions, splits.MOVIELENS),
        to_draw=Negatives(task="watch"),
    )
    return writer.write(prepared, Path(out), force=force)


def _local(variant: str, source: str | Path | None, checksum: str | None) -> Path:
    """A folder or zip on this machine."""
    url = f"{_BASE}/ml-{variant}.zip" if source is None else str(source)
    if url.startswith(("http://", "https://")):
        return download.fetch(url, checksum or SHA256[variant], download.cache_folder())
    if checksum is not None:
        raise ConfigError(
            f"--checksum needs a download (a URL or no --source), got --source {url}; omit it"
        )
    return Path(url)


def _raw(
    variant: str, files: RawFiles, partial: bool, bad: BadRows, asked: tuple[Wanted, ...]
) -> Raw:
    release = VARIANTS[variant]
    ratings_file, movies_file = release.files
    label = files.label(ratings_file)
    ratings = movielens_files.ratings(files, ratings_file, release.low, _HIGHEST, bad)
    if len(ratings) == 0:
        raise DataError(f"{label}: has no ratings; fetch it again")
    if release.ratings not in (0, len(ratings) + bad.count) and not partial:
        raise DataError(
            f"{label}: the published file has {release.ratings} ratings, got {len(ratings)}; "
            "fetch it again, or pass --partial for a subset"
        )
    seconds = ratings["timestamp"].to_numpy()
    movies = movielens_files.movies(files, movies_file, bad)
    return Raw(
        name=f"movielens-{variant}",
        user=ratings["user"].combine_chunks(),
        item=ratings["item"].combine_chunks(),
        labels=rating_labels(ratings["rating"].to_numpy()),
        timestamp=np.where(seconds == 0, UNKNOWN_TIME, seconds),  # MovieLens began in 1995
        tasks=rating_tasks(release.low, _HIGHEST),
        file=label,
        users=_users(files, release.users, bad, asked) if release.users else None,
        items=as_read(movies, "item", asked).drop_columns([movielens_files.RELEASED]),
        features=asked,
        sources=files.sources,
        report=bad.report(len(ratings)),
    )


def _users(files: RawFiles, name: str, bad: BadRows, asked: tuple[Wanted, ...]) -> pa.Table:
    """With the features, and the columns of the release as they are."""
    users = as_read(movielens_files.users(files, name, bad), "user", asked)
    return users.drop_columns([one for one in (movielens_files.WORK,) if one in users.column_names])
