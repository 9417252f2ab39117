"""A table of one's own, in CSV, TSV or Parquet: `recsys-moe prepare table`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from data_prep.features.spec import OPTIONS, Entity, of_entity, parse
from data_prep.features.spec import check_names as check_feature_names
from data_prep.options import one_of
from data_prep.rows import WEIGHT
from data_prep.split import protocols
from data_prep.table import engines, memory, stream
from data_prep.table.frame import Frame, Place
from data_prep.table.spec import Duplicates, Request, parse_tasks
from data_prep.write import writer
from recsys_moe import encodings
from recsys_moe.cells import Unit
from recsys_moe.encodings import UTF8
from recsys_moe.kinds import KINDS
from recsys_moe.schema import (
    EVENT,
    SPLITS,
    ConfigError,
    DataError,
    Distribution,
    Schema,
    check_names,
)

MOST_RATIO = 10_000
NAMES = {field.name for field in fields(Request)}
FILES = ("input", *SPLITS, "items", "user_features", "item_features")
FEATURES: dict[Entity, str] = {"user": "user_feature", "item": "item_feature", "context": "context"}


def prepare(
    out: Path,
    *,
    user: str,
    item: str,
    tasks: Sequence[str],
    input: Place | None = None,
    train: Place | None = None,
    val: Place | None = None,
    test: Place | None = None,
    timestamp: str | None = None,
    timestamp_unit: Unit = "auto",
    day_first: bool = False,
    encoding: str = UTF8,
    weight: str | None = None,
    items: Place | None = None,
    user_features: Place | None = None,
    user_feature: Sequence[str] | None = None,
    item_features: Place | None = None,
    item_feature: Sequence[str] | None = None,
    context: Sequence[str] | None = None,
    negatives: Literal["none", "per-user"] = "none",
    negative_ratio: float = 1.0,
    negative_distribution: Distribution = "uniform",
    fractions: str | None = None,
    duplicates: Duplicates = "error",
    skip_bad_rows: bool = False,
    protocol: str = "paper",
    seed: int = 0,
    force: bool = False,
    engine: str = "memory",
    max_memory_mb: int | None = None,
    scheduler: str | None = None,
) -> Schema:
    """Prepare `input` (files or a DataFrame), or `train`, `val` and `test` as they are.

    `tasks`: NAME:KIND=COLUMN, as in "watch:binary=clicked"; an empty cell is a missing label. The
    first binary task may have no column where negatives are drawn: every row is a positive.
    `timestamp_unit`: of numbers, `auto` goes by their size; `day_first`: 31/1/2024 is a date too.
    `encoding`: of all text files. `weight`: a column of numbers >= 0, how much a row counts in
    training; an empty cell counts 1. `items`: a file with more about the items, by the same item
    column. Features: NAME:KIND=COLUMN, as in "genres:multi=genres"; `context`: of the rows.
    `negatives` per-user draws `negative_ratio` items that the user has not touched for each
    positive of the first binary task (rounded up for each user; with its time and context).
    `fractions`: TRAIN,VAL,TEST, as in "0.8,0.1,0.1". `skip_bad_rows` leaves rows with a wrong cell
    out. `engine`: `memory` holds everything, `stream` and `dask` (protocol `hash`) hold pieces for
    `max_memory_mb` (2048) and write the same bytes. Raises DataError, and ConfigError for options.
    """
    options, presplit, out = locals(), input is None, Path(out)
    given = {name: _place(name, options[name]) for name in FILES}
    request, places = _request(options | given), _places(given)
    _check_request(request, presplit)
    _check_engine(engine, request, presplit)
    bounds = engines.bounds(engine, max_memory_mb, scheduler)
    writer.check_target(out, force, **_files(given, engine))
    if engine == "memory":
        rows = memory.prepare_rows(places, request, presplit=presplit)
        return writer.write(rows, out, force=force)
    assert isinstance(places[0], Path)
    return stream.prepare(out, places[0], request, force=force, **bounds)


def _request(options: dict[str, Any]) -> Request:
    """What is asked for. Raises ConfigError for a task or a feature that is spelled wrong."""
    specs = {entity: options[name] for entity, name in FEATURES.items()}
    features = [one for entity, given in specs.items() for one in parse(entity, given)]
    asked = {name: value for name, value in options.items() if name in NAMES}
    tasks = parse_tasks(options["tasks"])
    encoding = encodings.known(options["encoding"])
    return Request(**{**asked, "tasks": tasks, "features": tuple(features), "encoding": encoding})


def _place(option: str, given: Place | None) -> Place | None:
    if given is None or isinstance(given, Frame):
        return given
    if str(given) == "":  # Path("") would be the current folder
        raise ConfigError(f"--{option.replace('_', '-')} must name a file, got ''")
    return Path(given)


def _files(given: dict[str, Place | None], engine: str) -> dict[str, Path | None]:
    """Those of `given` that are no DataFrames. Raises ConfigError where all must be files."""
    pairs = [(name, place) for name, place in given.items() if not isinstance(place, Frame)]
    if len(pairs) < len(given) and engine != "memory":
        raise ConfigError(
            f"--engine {engine} needs files, got a DataFrame; write it as Parquet and pass the path"
        )
    return {name.replace("_", "-"): place for name, place in pairs}


def _places(given: dict[str, Place | None]) -> list[Place]:
    whole = given["input"]
    parts = [place for place in map(given.get, SPLITS) if place is not None]
    if whole is not None and not parts:
        return [whole]
    if whole is None and len(parts) == len(SPLITS):
        return parts
    raise ConfigError("give either --input, or all three of --train, --val and --test")


def _check_request(request: Request, presplit: bool) -> None:
    tasks, weight = [task for task, _ in request.tasks], WEIGHT if request.weight else None
    has_events = presplit or request.protocol not in protocols.ALL_KNOWN
    more = [*[WEIGHT] * bool(weight), *[EVENT] * (has_events and request.timestamp is not None)]
    try:
        check_names(tasks, more, "--task: ")
    except DataError as error:
        raise ConfigError(str(error)) from None
    if request.user == request.item:
        raise ConfigError(f"--user and --item must be two columns, got {request.user!r} for both")
    check_feature_names(request.features, tasks, weight)
    one_of("--negatives", request.negatives, ("none", "per-user"))
    one_of("--timestamp-unit", request.timestamp_unit, get_args(Unit))
    one_of("--duplicates", request.duplicates, ("error", "first", "last", "keep"))
    one_of("--negative-distribution", request.negative_distribution, get_args(Distribution))
    if not 0 < request.negative_ratio <= MOST_RATIO:
        raise ConfigError(
            f"--negative-ratio must be above 0 and at most {MOST_RATIO}, "
            f"got {request.negative_ratio:g}"
        )
    _check_negatives(request)
    _check_features(request)
    protocol = request.protocol
    if request.fractions is not None and presplit:
        raise ConfigError("--fractions needs --input; --train, --val and --test are already split")
    protocols.check_options(protocol, request.seed, request.fractions)
    if protocol != "paper" and presplit:
        raise ConfigError(
            f"--protocol {protocol} needs --input; --train, --val and --test are already split"
        )
    if protocol not in protocols.ALL_KNOWN and request.timestamp is None:
        raise ConfigError(f"--protocol {protocol} needs --timestamp COLUMN")


def _check_negatives(request: Request) -> None:
    drawn = request.to_draw
    if drawn is None:
        if request.negatives != "none":
            raise ConfigError(
                "--negatives per-user needs a binary task; add --task NAME:binary=COLUMN"
            )
        if (request.negative_ratio, request.negative_distribution) != (1, "uniform"):
            raise ConfigError(
                "--negative-ratio and --negative-distribution need --negatives per-user; add it"
            )
    for task, column in request.tasks:
        if column is None and (drawn is None or drawn.task != task.name):
            raise ConfigError(
                f"--task {task.name}:{task.kind} has no column, so every row is a positive: "
                + ("add --negatives per-user, or" if drawn is None else "only the first may;")
                + f" name the column, as in {task.name}:{task.kind}=COLUMN"
            )


def _check_features(request: Request) -> None:
    files: dict[Entity, Place | None] = {
        "user": request.user_features,
        "item": request.item_features,
    }
    for entity, file in files.items():
        asked, option = of_entity(request.features, entity), OPTIONS[entity]
        if asked and file is None:
            raise ConfigError(
                f"{option} {asked[0].feature.name} needs a feature file; add {option}s FILE"
            )
        if file is not None and not asked:
            raise ConfigError(f"{option}s needs at least one {option} NAME:KIND=COLUMN")
    labels = {column: task.name for task, column in request.tasks}
    for one in request.context:
        if one.source in labels:
            raise ConfigError(
                f"--context {one.feature.name} must not have the labels of a task, got "
                f"{one.source!r}, the column of --task {labels[one.source]}: it is not known "
                "before the choice; leave it out"
            )


def _check_engine(engine: str, request: Request, presplit: bool) -> None:
    one_of("--engine", engine, ("memory", *engines.ENGINES))
    if engine == "memory":
        return
    if presplit:
        raise ConfigError(
            f"--engine {engine} needs --input; --train, --val and --test need --engine memory"
        )
    for task, _ in request.tasks:
        if KINDS[task.kind].reads_text:
            raise ConfigError(
                f"--engine {engine} needs labels that are numbers, got --task {task.name}:"
                f"{task.kind}; pass --engine memory, or one binary task per class"
            )
    if request.protocol != "hash":
        raise ConfigError(
            f"--engine {engine} needs --protocol hash, got {request.protocol}; "
            "pass --protocol hash, or --engine memory"
        )
    if request.negative_distribution == "popularity":
        raise ConfigError(
            f"--engine {engine} needs --negative-distribution uniform, got popularity; "
            "pass uniform, or --engine memory"
        )
