"""`recsys-moe prepare ...`: raw files -> prepared folder."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from recsys_moe.cli.options import Json, Overwrite, opt
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import KINDS
from recsys_moe.kinds.levels import LEVEL
from recsys_moe.schema import FeatureKind, Schema, Task

TASK_KINDS = " or ".join(KINDS)

REPORT = {
    "missing_negatives": "negatives that could not be sampled",
    "logged_negatives": "rows in the log that look like sampled negatives",
    "dropped_repeats": "repeated (user, item) pairs dropped",
    "unused_user_features": "users in the feature file but not in the log",
    "unused_item_features": "items in the feature file but not in the log",
}
"""How the counts of schema.json's `report` are printed, where the key alone does not say it."""

app = typer.Typer(help="Prepare raw data for training.", no_args_is_help=True)

Out = Annotated[Path, opt("Folder to create, e.g. data/mine.")]
Seed = Annotated[int, opt("Random seed of the split and of sampled negatives.", min=0)]
Protocol = Annotated[str, opt("How rows are split: paper, hash, time or leave-last.")]
SkipBadRows = Annotated[bool, opt("Skip and count rows that cannot be used.", "--skip-bad-rows")]
Fractions = Annotated[
    str | None, opt("Shares of the splits, e.g. 0.8,0.1,0.1.", metavar="TRAIN,VAL,TEST")
]
FEATURE_KINDS = ", ".join(get_args(FeatureKind))
FEATURE_FORM = f"NAME:KIND=COLUMN; kinds: {FEATURE_KINDS}(:sep=TEXT). Repeatable."
UserFeatures = Annotated[Path | None, opt("File of user features, with the column of --user.")]
ItemFeatures = Annotated[Path | None, opt("File of item features, with the column of --item.")]
UserFeature = Annotated[list[str] | None, opt(f"User feature: {FEATURE_FORM}")]
ItemFeature = Annotated[list[str] | None, opt(f"Item feature: {FEATURE_FORM}")]
Context = Annotated[list[str] | None, opt(f"Context feature, of a row: {FEATURE_FORM}")]
TimestampUnit = Annotated[
    Literal["auto", "s", "ms", "us", "ns"], opt("Unit of numeric times; auto: by their size.")
]
DayFirst = Annotated[bool, opt("Also read dates like 31/1/2024.", "--day-first")]
Encoding = Annotated[str, opt("Encoding of text files, e.g. cp1252 or utf-16.")]
MaxMemory = Annotated[
    int | None, opt("Memory limit in MB of stream, or of each dask worker; 2048 by default.", min=1)
]
Scheduler = Annotated[
    str | None, opt("Dask scheduler: processes (default), threads, synchronous or tcp://HOST:PORT.")
]


@app.command()
def movielens(
    out: Out,
    variant: Annotated[str, opt("Release: 100k, 1m, latest-small, 10m, 20m, 25m or 32m.")],
    source: Annotated[
        str | None, opt("Folder, zip or URL; by default it downloads from GroupLens.")
    ] = None,
    features: Annotated[
        str | None,
        opt(
            "all, or a list of genres, year; with 100k and 1m also gender, age, occupation. "
            "Default: none."
        ),
    ] = None,
    protocol: Protocol = "paper",
    fractions: Fractions = None,
    skip_bad_rows: SkipBadRows = False,
    seed: Seed = 0,
    checksum: Annotated[str | None, opt("Expected SHA-256 or MD5 of the download.")] = None,
    partial: Annotated[bool, opt("Accept a subset of the release.", "--partial")] = False,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Prepare MovieLens: tasks watch (rated, with sampled negatives) and rating."""
    _prepare("movielens", locals())


@app.command()
def books(
    source: Annotated[Path, opt("Folder or zip with BX-Book-Ratings.csv.")],
    out: Out,
    min_user: Annotated[int, opt("Minimum number of records per user.", min=0)] = 5,
    min_item: Annotated[int, opt("Minimum number of records per book.", min=0)] = 5,
    strict: Annotated[bool, opt("Require more than the minimum.")] = True,
    order: Annotated[Literal["user-item", "item-user"], opt("Order of the filters.")] = "user-item",
    passes: Annotated[int, opt("Filter passes; 0 repeats until stable.", min=0)] = 1,
    rows: Annotated[Literal["all", "explicit"], opt("Records that the filters count.")] = "all",
    repair_isbn: Annotated[bool, opt("Merge spellings of an ISBN.", "--repair-isbn")] = False,
    features: Annotated[
        str | None, opt("all, or a list of author, publisher, year, age, country; none by default.")
    ] = None,
    fractions: Fractions = None,
    skip_bad_rows: SkipBadRows = False,
    seed: Seed = 0,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Prepare Book-Crossing: tasks watch (explicit or implicit record) and rating."""
    _prepare("books", locals())


@app.command()
def table(
    out: Out,
    user: Annotated[str, opt("Column of user ids.")],
    item: Annotated[str, opt("Column of item ids.")],
    tasks: Annotated[
        list[str],
        opt(
            f"NAME:KIND=COLUMN, kind {TASK_KINDS}; NAME:binary: all rows are positives.",
            "--task",
        ),
    ],
    input: Annotated[
        Path | None,
        opt("Interactions: CSV, TSV, JSON Lines or Parquet; file, folder or zip.", "--input"),
    ] = None,
    train: Annotated[Path | None, opt("Training rows of data already split.")] = None,
    val: Annotated[Path | None, opt("Validation rows of data already split.")] = None,
    test: Annotated[Path | None, opt("Test rows of data already split.")] = None,
    timestamp: Annotated[str | None, opt("Column of times.")] = None,
    timestamp_unit: TimestampUnit = "auto",
    day_first: DayFirst = False,
    encoding: Encoding = "utf-8",
    weight: Annotated[str | None, opt("Column of row weights in training, >= 0.")] = None,
    items: Annotated[
        Path | None, opt("File of titles and filter columns, with the column of --item.")
    ] = None,
    user_features: UserFeatures = None,
    user_feature: UserFeature = None,
    item_features: ItemFeatures = None,
    item_feature: ItemFeature = None,
    context: Context = None,
    negatives: Annotated[
        Literal["none", "per-user"],
        opt("Negatives to sample for the first binary or ranking task."),
    ] = "none",
    negative_ratio: Annotated[float, opt("Negatives per positive.")] = 1.0,
    negative_distribution: Annotated[
        Literal["uniform", "popularity"], opt("Distribution that negatives are sampled from.")
    ] = "uniform",
    duplicates: Annotated[
        Literal["error", "first", "last", "keep"],
        opt("What to do with repeated (user, item) pairs."),
    ] = "error",
    skip_bad_rows: SkipBadRows = False,
    protocol: Protocol = "paper",
    fractions: Fractions = None,
    engine: Annotated[str, opt("memory, stream (bounded memory) or dask (a cluster).")] = "memory",
    max_memory_mb: MaxMemory = None,
    scheduler: Scheduler = None,
    seed: Seed = 0,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Prepare a table of your own: user, item and label columns."""
    _prepare("table", locals())


@app.command()
def synthetic(
    out: Out,
    users: Annotated[int, opt("Number of users.", min=2)] = 1000,
    items: Annotated[int, opt("Number of items.", min=2)] = 800,
    interactions: Annotated[int, opt("Number of positives.", min=10)] = 60_000,
    experts: Annotated[int, opt("Number of planted groups.", min=1)] = 4,
    seed: Seed = 0,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Generate synthetic data with planted groups, shaped like MovieLens."""
    _prepare("synthetic", locals())


@app.command()
def module(
    name: Annotated[str, typer.Argument(help="Module to import, e.g. my_package.my_data.")],
    source: Annotated[str, opt("Source for the module: folder, file, ...")],
    out: Out,
    seed: Seed = 0,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Prepare with your own module: prepare(source, out, *, seed, force) -> Schema."""
    try:
        prepare = importlib.import_module(name).prepare
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"prepare module {name}: {error}; it must be importable and have a function prepare"
        ) from None
    _print(prepare(source, out, seed=seed, force=force), out, as_json)


def _prepare(source: str, options: dict[str, Any]) -> None:
    """Run `prepare` of data_prep.`source`, whose options are those of the command, and print."""
    as_json = options.pop("as_json")
    schema = importlib.import_module(f"data_prep.{source}").prepare(**options)
    _print(schema, options["out"], as_json)


def _print(schema: Schema, out: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps(json.loads(schema.to_json())))
        return
    where = " in training" if schema.vocabulary == "train" else ""
    sizes = ", ".join(_count(one.trained, one.name) for one in (schema.user, schema.item))
    print(f"{out}: {sizes}{where} ({schema.name})")
    for split, rows in schema.rows.items():
        counts = [_labels(task, schema.labels[split][task.name]) for task in schema.tasks]
        print(f"  {split:5} {_count(rows, 'row'):>15}: {', '.join(counts)}")
    for name, count in schema.report.items():
        print(f"  {REPORT.get(name, name.replace('_', ' '))}: {count:,}")
    for line in importlib.import_module("data_prep.proposals").proposals(out, schema):
        print(f"  {line}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _labels(task: Task, counts: dict[str, float]) -> str:
    if "positive" in counts:
        return f"{task.name} {counts['positive']:,.0f} positive of {counts['labelled']:,.0f}"
    labelled = f"{task.name} {counts['labelled']:,.0f} labelled"
    if not task.classes:
        return f"{labelled}, mean {counts['mean']:.4f}"
    rows = [counts.get(f"{LEVEL}{float(number)!r}", 0) for number in range(len(task.classes))]
    name, share = task.classes[rows.index(max(rows))], max(rows) / max(sum(rows), 1)
    return f"{labelled}, {len(rows)} classes" + (f", {name!r} has {share:.1%}" if share else "")
