"""MovieLens (Harper and Konstan 2015, doi 10.1145/2827872): `recsys-moe prepare movielens`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.movielens.files import Movielens, read_1m, read_10m, read_100k, read_csv
from data_prep.options import one_of
from data_prep.read import download
from data_prep.read.ratings import rating_tasks
from data_prep.read.raw_files import RawFiles
from data_prep.rows import Raw
from data_prep.split import protocols
from data_prep.write import writer
from recsys_moe.schema import DataError, Schema

log = logging.getLogger("recsys_moe.prepare")
_BASE = "https://files.grouplens.org/datasets/movielens"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One release: where it is, how it is laid out, and its rating scale."""

    archive: str
    """Name of the zip on the publisher's server."""
    sha256: str
    folder: str
    """The folder inside the zip."""
    ratings: int
    """Published number of ratings; 0 for a release that changes over time."""
    low: float
    """Lowest rating, and the step of the scale."""
    read: Callable[[RawFiles, float, float], Movielens]
    high: float = 5.0


VARIANTS = {
    "100k": Variant(
        archive="ml-100k.zip",
        sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        folder="ml-100k",
        ratings=100_000,
        low=1.0,
        read=read_100k,
    ),
    "1m": Variant(
        archive="ml-1m.zip",
        sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        folder="ml-1m",
        ratings=1_000_209,
        low=1.0,
        read=read_1m,
    ),
    "10m": Variant(
        archive="ml-10m.zip",
        sha256="813c411ccb6122564edfe752e7f80c4dcc5aa25fa94c93622f6877a7ba252862",
        folder="ml-10M100K",
        ratings=10_000_054,
        low=0.5,
        read=read_10m,
    ),
    "latest-small": Variant(
        archive="ml-latest-small.zip",
        # The release of September 2018. The publisher may replace it: then pass the new checksum.
        sha256="696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
        folder="ml-latest-small",
        ratings=0,
        low=0.5,
        read=read_csv,
    ),
    "20m": Variant(
        archive="ml-20m.zip",
        sha256="96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
        folder="ml-20m",
        ratings=20_000_263,
        low=0.5,
        read=read_csv,
    ),
    "25m": Variant(
        archive="ml-25m.zip",
        sha256="8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa",
        folder="ml-25m",
        ratings=25_000_095,
        low=0.5,
        read=read_csv,
    ),
    "32m": Variant(
        archive="ml-32m.zip",
        sha256="e4a68655d7386b8f95f2f2424b2ff975dfdd15ffd59e0d864a14dca43e99d6ee",
        folder="ml-32m",
        ratings=32_000_204,
        low=0.5,
        read=read_csv,
    ),
}


def prepare(
    variant: str,
    source: str | Path | None,
    out: Path,
    *,
    protocol: str = "paper",
    seed: int = 0,
    force: bool = False,
    checksum: str | None = None,
    partial: bool = False,
) -> Schema:
    """Read a release, draw one unrated movie per rating for each user, split, and write `out`.

    `source`: a folder, a zip or a URL; None downloads from the publisher. `checksum` (hex SHA-256
    or MD5) replaces the pinned one for a download. `partial` accepts fewer ratings than
    were published. Tasks: `watch` (1 for rated, 0 for drawn) and
    `rating` (missing for drawn). Raises DataError for unusable data, ConfigError for options.
    """
    one_of("--variant", variant, VARIANTS)
    protocols.check_options(protocol, seed)
    writer.check_target(Path(out), force)
    release = VARIANTS[variant]
    files = RawFiles(_local(release, source, checksum), release.folder)
    raw = _raw(f"movielens-{variant}", release, files, partial)
    prepared = protocols.prepare_rows(
        raw,
        protocol=protocol,
        seed=seed,
        command=f"prepare movielens --variant {variant} --protocol {protocol} --seed {seed}",
        negative_task="watch",
    )
    return writer.write(prepared, Path(out), force=force)


def _local(release: Variant, source: str | Path | None, checksum: str | None) -> Path:
    """A folder or zip on this machine."""
    url = f"{_BASE}/{release.archive}" if source is None else str(source)
    if url.startswith(("http://", "https://")):
        return download.fetch(url, checksum or release.sha256, download.cache_folder())
    return Path(url)


def _raw(name: str, release: Variant, files: RawFiles, partial: bool) -> Raw:
    data = release.read(files, release.low, release.high)
    ratings = data.ratings
    if len(ratings) == 0:
        raise DataError(f"{data.file}: has no ratings; fetch it again")
    if release.ratings and len(ratings) != release.ratings and not partial:
        raise DataError(
            f"{data.file}: the published file has {release.ratings} ratings, got {len(ratings)}; "
            "fetch it again, or pass --partial for a subset"
        )
    return Raw(
        name=name,
        user=ratings["user"].combine_chunks(),
        item=ratings["item"].combine_chunks(),
        labels={
            "watch": np.ones(len(ratings), dtype=np.float32),
            "rating": ratings["rating"].to_numpy(),
        },
        timestamp=ratings["timestamp"].to_numpy(),
        tasks=rating_tasks(release.low, release.high),
        file=data.file,
        users=data.users,
        items=data.movies,
        sources=files.sources,
    )
