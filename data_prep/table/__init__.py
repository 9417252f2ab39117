"""A table of one's own, in CSV, TSV or Parquet: `recsys-moe prepare table`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from data_prep.options import at_least, one_of
from data_prep.split import protocols
from data_prep.table import engines, memory, stream
from data_prep.table.spec import Duplicates, Request, parse_tasks
from data_prep.write import writer
from recsys_moe.schema import SPLITS, ConfigError, Schema


def prepare(
    out: Path,
    *,
    user: str,
    item: str,
    tasks: Sequence[str],
    input: Path | None = None,
    train: Path | None = None,
    val: Path | None = None,
    test: Path | None = None,
    timestamp: str | None = None,
    items: Path | None = None,
    negatives: Literal["none", "per-user"] = "none",
    duplicates: Duplicates = "error",
    protocol: str = "paper",
    seed: int = 0,
    force: bool = False,
    engine: str = "memory",
    max_memory_mb: int = 2048,
    scheduler: str = "processes",
) -> Schema:
    """Prepare `input` (a file or a folder of files), or `train`, `val` and `test` as they are.

    `tasks`: NAME:KIND=COLUMN, as in "watch:binary=clicked"; an empty cell is a missing label.
    `items`: a file with more about the items, by the same item column. `negatives` per-user draws
    unlabelled items for the first binary task. `duplicates`: what to do when a (user, item) pair
    has several rows. `engine`: `memory` holds everything, `stream` and `dask` hold pieces
    for which `max_memory_mb` is enough and write the same bytes (protocol `hash` only); `scheduler`
    is Dask's. Raises DataError for unusable data, ConfigError for options.
    """
    request = Request(
        user=user,
        item=item,
        tasks=parse_tasks(tasks),
        timestamp=timestamp,
        items=items,
        negatives=negatives,
        duplicates=duplicates,
        protocol=protocol,
        seed=seed,
    )
    places = _places(input, train, val, test)
    _check_request(request, presplit=input is None)
    at_least("--max-memory-mb", max_memory_mb, 1)
    _check_engine(engine, protocol, presplit=input is None)
    inputs = {"input": input, "train": train, "val": val, "test": test, "items": items}
    writer.check_target(Path(out), force, **inputs)
    if engine == "memory":
        prepared = memory.prepare_rows(places, request, presplit=input is None)
        return writer.write(prepared, Path(out), force=force)
    return stream.prepare(
        Path(out),
        places[0],
        request,
        max_memory_mb=max_memory_mb,
        mapper=engines.mapper(engine, scheduler),
        force=force,
    )


def _places(
    input: Path | None, train: Path | None, val: Path | None, test: Path | None
) -> list[Path]:
    given = [place for place in (train, val, test) if place is not None]
    if input is not None and not given:
        return [Path(input)]
    if input is None and len(given) == len(SPLITS):
        return [Path(place) for place in given]
    raise ConfigError("give either --input, or all three of --train, --val and --test")


def _check_request(request: Request, presplit: bool) -> None:
    one_of("--negatives", request.negatives, ("none", "per-user"))
    one_of("--duplicates", request.duplicates, ("error", "first", "last", "keep"))
    if request.negatives == "per-user" and request.negative_task is None:
        raise ConfigError("--negatives per-user needs a binary task; add --task NAME:binary=COLUMN")
    protocol = request.protocol
    protocols.check_options(protocol, request.seed)
    if protocol != "paper" and presplit:
        raise ConfigError(f"--protocol {protocol} splits --input; --train, --val, --test are split")
    if protocol not in protocols.ALL_KNOWN and request.timestamp is None:
        raise ConfigError(f"--protocol {protocol} needs --timestamp COLUMN")


def _check_engine(engine: str, protocol: str, presplit: bool) -> None:
    one_of("--engine", engine, ("memory", *engines.ENGINES))
    if engine == "memory":
        return
    if presplit:
        raise ConfigError(f"--engine {engine} splits --input; --train, --val, --test need memory")
    if protocol != "hash":
        raise ConfigError(
            f"--engine {engine} must have --protocol hash, got {protocol}, which needs all rows "
            "at once; pass --protocol hash, or --engine memory"
        )
