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

app = typer.Typer(help="Turn raw data into a prepared folder.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="Folder to create.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the folder at --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print schema.json.")]
Seed = Annotated[int, typer.Option(min=0, help="Drives the split and the sampled negatives.")]
Protocol = Annotated[str, typer.Option(help="paper, hash, time or leave-last.")]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out, count and list what cannot be used.")
]
Fractions = Annotated[
    str | None, typer.Option(metavar="TRAIN,VAL,TEST", help="Shares, as in 0.8,0.1,0.1.")
]
FEATURE_KINDS = ", ".join(get_args(FeatureKind))
FEATURE_FORM = f"NAME:KIND=COLUMN, kind {FEATURE_KINDS}; of multi may end with :sep=TEXT."
UserFeatures = Annotated[
    Path | None, typer.Option(help="File of user features, keyed by the column --user.")
]
ItemFeatures = Annotated[
    Path | None, typer.Option(help="File of item features, keyed by the column --item.")
]
UserFeature = Annotated[list[str] | None, typer.Option(help=f"Of that file: {FEATURE_FORM}")]
ItemFeature = Annotated[list[str] | None, typer.Option(help=f"Of that file: {FEATURE_FORM}")]
Context = Annotated[
    list[str] | None,
    typer.Option(help=f"Of the rows, with --negatives none: {FEATURE_FORM}"),
]
TimestampUnit = Annotated[
    Literal["auto", "s", "ms", "us", "ns"],
    typer.Option(help="Of times that are numbers; auto goes by their size."),
]
DayFirst = Annotated[bool, typer.Option("--day-first", help="Dates may be like 31/1/2024 too.")]
Encoding = Annotated[str, typer.Option(help="Of files in text, as cp1252 or utf-16.")]
MaxMemory = Annotated[
    int | None,
    typer.Option(min=1, help="For stream, and for each worker of dask; without it 2048."),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        help="Dask's: processes, threads, synchronous or tcp://HOST:PORT; without it processes."
    ),
]


@app.command()
def movielens(
    out: Out,
    variant: Annotated[str, typer.Option(help="100k, 1m, latest-small, 10m, 20m, 25m or 32m.")],
    source: Annotated[
        str | None, typer.Option(help="Folder, zip or URL; without it, downloads from GroupLens.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="all, or by comma: genres, year; of 100k and 1m gender, age, occupation too. "
            "Without it none."
        ),
    ] = None,
    protocol: Protocol = "paper",
    fractions: Fractions = None,
    skip_bad_rows: SkipBadRows = False,
    seed: Seed = 0,
    checksum: Annotated[
        str | None, typer.Option(help="SHA-256 or MD5 that the download must have.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept a subset of the published ratings.")
    ] = False,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """MovieLens: watch (rated, against sampled negatives) and rating."""
    _prepare("movielens", locals())


@app.command()
def books(
    source: Annotated[Path, typer.Option(help="Folder or zip with BX-Book-Ratings.csv.")],
    out: Out,
    min_user: Annotated[int, typer.Option(min=0, help="Records a user must have.")] = 5,
    min_item: Annotated[int, typer.Option(min=0, help="Records a book must have.")] = 5,
    strict: Annotated[bool, typer.Option(help="Strictly more than the minimum.")] = True,
    order: Annotated[
        Literal["user-item", "item-user"], typer.Option(help="Which filter comes first.")
    ] = "user-item",
    passes: Annotated[int, typer.Option(min=0, help="Filter passes; 0 repeats until stable.")] = 1,
    rows: Annotated[
        Literal["all", "explicit"], typer.Option(help="Records that count for the filter.")
    ] = "all",
    repair_isbn: Annotated[bool, typer.Option("--repair-isbn", help="Unify ISBNs.")] = False,
    features: Annotated[
        str | None,
        typer.Option(
            help="all, or by comma: author, publisher, year (BX-Books.csv), age, country "
            "(BX-Users.csv). Without it none."
        ),
    ] = None,
    fractions: Fractions = None,
    skip_bad_rows: SkipBadRows = False,
    seed: Seed = 0,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Book-Crossing: watch (explicit against implicit record) and rating."""
    _prepare("books", locals())


@app.command()
def table(
    out: Out,
    user: Annotated[str, typer.Option(help="Column with user ids.")],
    item: Annotated[str, typer.Option(help="Column with item ids.")],
    tasks: Annotated[
        list[str],
        typer.Option(
            "--task",
            help=f"NAME:KIND=COLUMN, kind {KINDS}; watch:binary alone: every row is a positive.",
        ),
    ],
    input: Annotated[
        Path | None,
        typer.Option("--input", help="CSV, TSV, JSON Lines or Parquet: file, folder or zip."),
    ] = None,
    train: Annotated[Path | None, typer.Option(help="Training rows, already split.")] = None,
    val: Annotated[Path | None, typer.Option(help="Validation rows, already split.")] = None,
    test: Annotated[Path | None, typer.Option(help="Test rows, already split.")] = None,
    timestamp: Annotated[str | None, typer.Option(help="Column with the time of a row.")] = None,
    timestamp_unit: TimestampUnit = "auto",
    day_first: DayFirst = False,
    encoding: Encoding = "utf-8",
    weight: Annotated[
        str | None, typer.Option(help="Column with how much a row counts in training, >= 0.")
    ] = None,
    items: Annotated[
        Path | None, typer.Option(help="File of titles and columns to filter by, keyed by --item.")
    ] = None,
    user_features: UserFeatures = None,
    user_feature: UserFeature = None,
    item_features: ItemFeatures = None,
    item_feature: ItemFeature = None,
    context: Context = None,
    negatives: Annotated[
        Literal["none", "per-user"], typer.Option(help="Rows to draw for the first binary task.")
    ] = "none",
    negative_ratio: Annotated[float, typer.Option(help="Negatives for each positive.")] = 1.0,
    negative_distribution: Annotated[
        Literal["uniform", "popularity"], typer.Option(help="How likely an item is drawn.")
    ] = "uniform",
    duplicates: Annotated[
        Literal["error", "first", "last", "keep"],
        typer.Option(help="What to do with repeated pairs."),
    ] = "error",
    skip_bad_rows: SkipBadRows = False,
    protocol: Protocol = "paper",
    fractions: Fractions = None,
    engine: Annotated[
        str, typer.Option(help="memory, or in pieces: stream (bounded memory) or dask (a cluster).")
    ] = "memory",
    max_memory_mb: MaxMemory = None,
    scheduler: Scheduler = None,
    seed: Seed = 0,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Any table of interactions with label columns of your own."""
    _prepare("table", locals())


@app.command()
def synthetic(
    out: Out,
    users: Annotated[int, typer.Option(min=2)] = 1000,
    items: Annotated[int, typer.Option(min=2)] = 800,
    interactions: Annotated[int, typer.Option(min=10)] = 60_000,
    experts: Annotated[int, typer.Option(min=1, help="Planted groups.")] = 4,
    seed: Seed = 0,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Made-up data with planted expert structure, shaped like MovieLens."""
    _prepare("synthetic", locals())


@app.command()
def module(
    name: Annotated[str, typer.Argument(help="Importable module, e.g. my_package.my_data.")],
    source: Annotated[str, typer.Option(help="Folder, file or whatever the module reads.")],
    out: Out,
    seed: Seed = 0,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Your own source: a module with prepare(source, out, *, seed, force) -> Schema."""
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
