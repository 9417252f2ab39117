"""schema.json: what a prepared folder holds.

A prepared folder holds `train/`, `val/`, `test/` (Parquet parts), `users.parquet`,
`items.parquet` and `schema.json`. data_prep imports the errors from here.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import WrapValidator

from recsys_moe.errors import ConfigError, DataError
from recsys_moe.kinds import check_levels, kind_of
from recsys_moe.section import STRICT, validated
from recsys_moe.task import RESERVED, Task, check_names

__all__ = ["ConfigError", "DataError", "Feature", "Schema", "FeatureColumn", "Source"]
__all__ += ["RESERVED", "Task", "check_names"]

FORMAT_VERSIONS = (1, 2)
"""Versions that are read. Folders with features are written as 2, others as 1."""
SCHEMA_FILE = "schema.json"
SPLITS = ("train", "val", "test")

IdType = Literal["int64", "string"]
Vocabulary = Literal["all", "train"]
FeatureKind = Literal["categorical", "multi", "numeric"]
Distribution = Literal["uniform", "popularity"]
"""Of sampled negatives; `popularity`: in proportion to the rows of an item."""


def _as_read(value: Any, number: Callable[[Any], float]) -> float:
    """Keep whole numbers, so that schema.json is written as it was read."""
    found = number(value)
    return value if type(value) is int else found


Count = Annotated[float, WrapValidator(_as_read)]
ENTITIES = ("user", "item", "context")
"""Whose feature it is: the user's, the item's, or the single row's."""
MOST = 2**31 - 1
"""Indices are int32; one is that of unknown ids."""
EVENT, TIME = "event", "timestamp"
"""Column of split files: the place of a row, from 0, in its user's timeline over all splits."""
FEATURE = "feature:"
"""Prefix of columns with features, which hold indices and standardised numbers."""


def check_split(option: str, split: str) -> None:
    """Raise ConfigError unless it is a split."""
    if split not in SPLITS:
        raise ConfigError(f"{option} must be one of {', '.join(SPLITS)}, got {split!r}")


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One id column: raw ids map to 0..size-1; `size` is the index of unknown ids.

    Ids of the vocabulary of a model come first: index >= `trained` is out of vocabulary (OOV), with
    features, bags and events of its own.
    """

    name: str
    column: str
    """Column of the split files holding the dense index (int32)."""
    size: int
    id_type: IdType
    """Type of the raw ids in users.parquet and items.parquet."""
    trained: int = -1
    """Ids in the vocabulary: with vocabulary `train` those with a training row. -1: all."""

    def __post_init__(self) -> None:
        if self.trained == -1:
            object.__setattr__(self, "trained", self.size)


@dataclass(frozen=True, kw_only=True)
class FeatureColumn:
    """A feature of a user, an item or a row."""

    name: str
    kind: FeatureKind
    size: int = 0
    """Number of categories in training; `size` is the index of unknown ones. 0: numeric."""
    mean: float = 0.0
    std: float = 1.0
    """Standard deviation of raw training values, by which numeric features are standardised."""

    @property
    def column(self) -> str:
        """In users.parquet, items.parquet or, for a context, the split files.

        int32 (categorical), list of int32 (multi) or standardised float32 (numeric); null: missing.
        """
        return f"{FEATURE}{self.name}"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A raw file that the data were made from."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What a prepared folder holds and where it came from."""

    __pydantic_config__ = STRICT

    name: str
    protocol: str
    vocabulary: Vocabulary
    """`all`: a model knows the ids of every split; `train`: only those of the training rows."""
    user: Feature
    item: Feature
    tasks: tuple[Task, ...]
    rows: dict[str, int]
    """Rows per split."""
    labels: dict[str, dict[str, dict[str, Count]]]
    """Per split and task: `labelled`, `mean`, and what its kind counts (`recsys_moe.kinds`)."""
    weight: str | None = None
    """Column of the split files with row weights, float32, finite and >= 0; None: all equal."""
    events: bool = False
    """Whether split files have the column `event` (int32), by time and then as in the input; a
    sampled negative has the `event` and `timestamp` of its positive."""
    seeds: dict[str, int] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    command: str = ""
    """The command without input and output folders, so that equal input gives equal bytes."""
    report: dict[str, int] = field(default_factory=dict)
    """Counts such as broken lines, dropped duplicates, capped users."""
    negatives: Distribution | None = None
    """Distribution of sampled negatives; None without any."""
    user_features: tuple[FeatureColumn, ...] = ()
    item_features: tuple[FeatureColumn, ...] = ()
    context_features: tuple[FeatureColumn, ...] = ()

    @property
    def more_columns(self) -> list[str]:
        """Of the split files, those that not all folders have."""
        return [*([] if self.weight is None else [self.weight]), *[EVENT] * self.events]

    @property
    def has_features(self) -> bool:
        return bool(self.user_features or self.item_features or self.context_features)

    def counts(self, split: str, task: str, *needed: str) -> dict[str, float]:
        """An entry of `labels`. Raises DataError where one of `needed` is missing."""
        counts = self.labels.get(split, {}).get(task, {})
        for name in needed:
            if name not in counts:
                where = f"{SCHEMA_FILE}: labels.{split}.{task}"
                raise DataError(f"{where} must hold {name!r}; prepare the data again")
        return counts

    def to_json(self) -> str:
        raw = asdict(self)
        for name in ("weight", "negatives", "events"):
            if not raw[name]:  # as in older folders
                del raw[name]
        for feature in (raw["user"], raw["item"]):
            if feature["trained"] == feature["size"]:  # as in older folders
                del feature["trained"]
        for task in raw["tasks"]:
            if not task["levels"]:  # as in older folders
                del task["levels"], task["shares"]
            if not task["classes"]:
                del task["classes"]
        if not self.has_features:  # as in version 1
            for entity in ENTITIES:
                del raw[f"{entity}_features"]
        raw["format_version"] = 2 if self.has_features else 1
        return json.dumps(raw, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, origin: str = SCHEMA_FILE) -> Schema:
        """Parse and check `text`. Raises DataError naming `origin` and the offending key."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:  # also numbers and nesting without end
            raise DataError(f"{origin}: not valid JSON ({error}); prepare the data again") from None
        _check_version(raw, origin)
        del raw["format_version"]
        try:
            schema = _with_negatives(validated(cls, raw))
            check_names(schema.tasks, schema.more_columns, f"{origin}: ")
            _check_counts(schema)
        except TypeError as error:
            raise DataError(f"{origin}: {error}; prepare the data again") from None
        return schema

    @classmethod
    def load(cls, folder: Path) -> Schema:
        """Read `folder`/schema.json. Raises DataError when `folder` is not prepared data."""
        path = Path(folder) / SCHEMA_FILE
        if not path.is_file():
            raise DataError(
                f"{folder} is not prepared data: no {SCHEMA_FILE}; run `recsys-moe prepare`"
            )
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: {error}; prepare the data again") from None
        return cls.from_json(text, str(path))


def _with_negatives(schema: Schema) -> Schema:
    """`schema`, with `negatives` read from the command where the key is missing."""
    if schema.negatives is not None or "missing_negatives" not in schema.report:
        return schema
    words = shlex.split(schema.command)
    is_popular = ("--negative-distribution", "popularity") in pairwise(words)
    return replace(schema, negatives="popularity" if is_popular else "uniform")


def _check_version(raw: Any, origin: str) -> None:
    if not isinstance(raw, dict):
        raise DataError(f"{origin}: must hold a JSON object, got {type(raw).__name__}")
    version = raw.get("format_version")
    if type(version) is not int or version not in FORMAT_VERSIONS:
        raise DataError(
            f"{origin}: format_version must be 1 or 2, got {version!r}; "
            "prepare the data again with this version of recsys-moe"
        )


def _check_counts(schema: Schema) -> None:
    """Raise TypeError for impossible sizes and counts."""
    if not schema.tasks:
        raise TypeError("tasks must be at least one, got []")
    for task in schema.tasks:
        check_levels(task.name, kind_of(task))
    features = (*schema.user_features, *schema.item_features, *schema.context_features)
    sizes = {schema.user.name: schema.user.size, schema.item.name: schema.item.size}
    sizes |= {one.name: one.size for one in features}
    for name, count in {**sizes, **schema.rows}.items():
        if count < 0 or (name in sizes and count > MOST):
            raise TypeError(f"the size of {name} must be in 0..{MOST}, got {count}")
    for one in (schema.user, schema.item):
        if not 0 <= one.trained <= one.size:
            raise TypeError(f"{one.name}.trained must be in 0..{one.size}, got {one.trained}")
    for feature in features:
        if not feature.std > 0:
            raise TypeError(f"std of {feature.name} must be > 0, got {feature.std}")
