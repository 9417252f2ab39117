"""`recsys-moe prepare ...`: raw files -> prepared folder."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from recsys_moe.errors import ConfigError
from recsys_moe.schema import FeatureKind, Schema, TaskKind

KINDS = " or ".join(get_args(TaskKind))

app = typer.Typer(help="Prepare raw data for training.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="Folder to create, e.g. data/mine.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an existing prepared folder.")
]
Json = Annotated[bool, typer.Option("--json", help="Print schema.json.")]
Seed = Annotated[
    int, typer.Option(min=0, help="Random seed of the split and of sampled negatives.")
]
Protocol = Annotated[str, typer.Option(help="How rows are split: paper, hash, time or leave-last.")]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Skip and count rows that cannot be used.")
]
Fractions = Annotated[
    str | None,
    typer.Option(metavar="TRAIN,VAL,TEST", help="Shares of the splits, e.g. 0.8,0.1,0.1."),
]
FEATURE_KINDS = ", ".join(get_args(FeatureKind))
FEATURE_FORM = f"NAME:KIND=COLUMN; kinds: {FEATURE_KINDS}(:sep=TEXT). Repeatable."
UserFeatures = Annotated[
    Path | None, typer.Option(help="File of user features, with the column of --user.")
]
ItemFeatures = Annotated[
    Path | None, typer.Option(help="File of item features, with the column of --item.")
]
UserFeature = Annotated[list[str] | None, typer.Option(help=f"User feature: {FEATURE_FORM}")]
ItemFeature = Annotated[list[str] | None, typer.Option(help=f"Item feature: {FEATURE_FORM}")]
Context = Annotated[
    list[str] | None,
    typer.Option(help=f"Feature of a row, with --negatives none: {FEATURE_FORM}"),
]
TimestampUnit = Annotated[
    Literal["auto", "s", "ms", "us", "ns"],
    typer.Option(help="Unit of numeric times; auto: by their size."),
]
DayFirst = Annotated[bool, typer.Option("--day-first", help="Also read dates like 31/1/2024.")]
Encoding = Annotated[str, typer.Option(help="Encoding of text files, e.g. cp1252 or utf-16.")]
MaxMemory = Annotated[
    int | None,
    typer.Option(
        min=1, help="Memory limit in MB of stream, or of each dask worker; 2048 by default."
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        help="Dask scheduler: processes (default), threads, synchronous or tcp://HOST:PORT."
    ),
]


@app.command()
def movielens(
    out: Out,
    variant: Annotated[
        str, typer.Option(help="Release: 100k, 1m, latest-small, 10m, 20m, 25m or 32m.")
    ],
    source: Annotated[
        str | None, typer.Option(help="Folder, zip or URL; by default it downloads from GroupLens.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="all, or a list of genres, year and, with 100k and 1m, gender, age, occupation; "
            "none by default."
        ),
    ] = None,
    protocol: Protocol = "paper",
    fractions: Fractions = None,
    skip_bad_rows: SkipBadRows = False,
    seed: Seed = 0,
    checksum: Annotated[
        str | None, typer.Option(help="Expected SHA-256 or MD5 of the download.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept a subset of the release.")
    ] = False,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Prepare MovieLens: tasks watch (rated, with sampled negatives) and rating."""
    _prepare("movielens", locals())


@app.command()
def books(
    source: Annotated[Path, typer.Option(help="Folder or zip with BX-Book-Ratings.csv.")],
    out: Out,
    min_user: Annotated[int, typer.Option(min=0, help="Minimum number of records per user.")] = 5,
    min_item: Annotated[int, typer.Option(min=0, help="Minimum number of records per book.")] = 5,
    strict: Annotated[bool, typer.Option(help="Require more than the minimum.")] = True,
    order: Annotated[
        Literal["user-item", "item-user"], typer.Option(help="Order of the filters.")
    ] = "user-item",
    passes: Annotated[int, typer.Option(min=0, help="Filter passes; 0 repeats until stable.")] = 1,
    rows: Annotated[
        Literal["all", "explicit"], typer.Option(help="Records that the filters count.")
    ] = "all",
    repair_isbn: Annotated[
        bool, typer.Option("--repair-isbn", help="Merge spellings of an ISBN.")
    ] = False,
    features: Annotated[
        str | None,
        typer.Option(
            help="all, or a list of author, publisher, year, age, country; none by default."
        ),
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
    user: Annotated[str, typer.Option(help="Column of user ids.")],
    item: Annotated[str, typer.Option(help="Column of item ids.")],
    tasks: Annotated[
        list[str],
        typer.Option(
            "--task",
            help=f"NAME:KIND=COLUMN, kind {KINDS}; NAME:binary: all rows are positives.",
        ),
    ],
    input: Annotated[
        Path | None,
        typer.Option(
            "--input", help="Interactions: CSV, TSV, JSON Lines or Parquet; file, folder or zip."
        ),
    ] = None,
    train: Annotated[Path | None, typer.Option(help="Training rows of data already split.")] = None,
    val: Annotated[Path | None, typer.Option(help="Validation rows of data already split.")] = None,
    test: Annotated[Path | None, typer.Option(help="Test rows of data already split.")] = None,
    timestamp: Annotated[str | None, typer.Option(help="Column of times.")] = None,
    timestamp_unit: TimestampUnit = "auto",
    day_first: DayFirst = False,
    encoding: Encoding = "utf-8",
    weight: Annotated[
        str | None, typer.Option(help="Column of row weights in training, >= 0.")
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option(help="File of titles and filter columns, with the column of --item."),
    ] = None,
    user_features: UserFeatures = None,
    user_feature: UserFeature = None,
    item_features: ItemFeatures = None,
    item_feature: ItemFeature = None,
    context: Context = None,
    negatives: Annotated[
        Literal["none", "per-user"],
        typer.Option(help="Negatives to sample for the first binary task."),
    ] = "none",
    negative_ratio: Annotated[float, typer.Option(help="Negatives per positive.")] = 1.0,
    negative_distribution: Annotated[
        Literal["uniform", "popularity"],
        typer.Option(help="Distribution that negatives are sampled from."),
    ] = "uniform",
    duplicates: Annotated[
        Literal["error", "first", "last", "keep"],
        typer.Option(help="What to do with repeated (user, item) pairs."),
    ] = "error",
    skip_bad_rows: SkipBadRows = False,
    protocol: Protocol = "paper",
    fractions: Fractions = None,
    engine: Annotated[
        str, typer.Option(help="memory, stream (bounded memory) or dask (a cluster).")
    ] = "memory",
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
    users: Annotated[int, typer.Option(min=2, help="Number of users.")] = 1000,
    items: Annotated[int, typer.Option(min=2, help="Number of items.")] = 800,
    interactions: Annotated[int, typer.Option(min=10, help="Number of positives.")] = 60_000,
    experts: Annotated[int, typer.Option(min=1, help="Number of planted groups.")] = 4,
    seed: Seed = 0,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Generate synthetic data with planted groups, shaped like MovieLens."""
    _prepare("synthetic", locals())


@app.command()
def module(
    name: Annotated[str, typer.Argument(help="Module to import, e.g. my_package.my_data.")],
    source: Annotated[str, typer.Option(help="Source for the module: folder, file, ...")],
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
    print(f"{out}: {schema.user.size} users, {schema.item.size} items{where} ({schema.name})")
    for split, rows in schema.rows.items():
        counts = [_labels(task.name, schema.labels[split][task.name]) for task in schema.tasks]
        print(f"  {split:5} {rows:>10,} rows: {', '.join(counts)}")
    for name, count in schema.report.items():
        print(f"  {name.replace('_', ' ')}: {count:,}")


def _labels(task: str, counts: dict[str, float]) -> str:
    if "positive" in counts:
        return f"{task} {counts['positive']:,.0f} positive of {counts['labelled']:,.0f}"
    return f"{task} {counts['labelled']:,.0f} labelled, mean {counts['mean']:.4f}"
