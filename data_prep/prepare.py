"""`recsys_moe.prepare`: a DataFrame or files -> a prepared folder, from Python."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from data_prep import table
from data_prep.options import did_you_mean
from data_prep.table.frame import Frame
from recsys_moe.frames import WANTED, is_frame
from recsys_moe.schema import ConfigError, DataError, Schema

PARAMETERS = inspect.signature(table.prepare).parameters
HINTS = get_type_hints(table.prepare)
RENAMED = {"input": "data", "timestamp": "time", "force": "overwrite"}
KEYWORDS = {name: RENAMED.get(name, name) for name in PARAMETERS}
"""What an option of `prepare table` is called here; `timestamp` too."""
SPECS = ("tasks", *table.FEATURES.values())
COLUMNS = ("user", "item", "timestamp", "weight")
FLAG = re.compile(r"(?<![\w-])--([a-z-]+)")


def prepare(
    data: Any = None,
    *,
    user: Any,
    item: Any,
    tasks: Mapping[str, Any] | Sequence[str],
    out: str | os.PathLike[str],
    time: Any = None,
    **options: Any,
) -> Schema:
    """Write a prepared folder to `out` for `fit`, and return its schema.

    `data`: a DataFrame of pandas, Polars, DuckDB, pyarrow or another library that has
    `__arrow_c_stream__` or `__dataframe__`; or a CSV, TSV, JSON Lines or Parquet file, a folder
    or a zip of them. `user`, `item`, `time`: names of columns. `tasks`: KIND=COLUMN or (KIND,
    COLUMN) by name, as in {"watch": "binary=clicked", "rating": "regression=stars"}; a binary
    task without a column needs `negatives="per-user"`. Missing labels are null or NaN.

    `options` are those of `recsys-moe prepare table`, `-` as `_`: `protocol="time"`,
    `negatives="per-user"`, `duplicates="last"`, `weight="hours"`, `overwrite=True`. `train`,
    `val` and `test` take the place of `data`; these and `items`, `user_features` and
    `item_features` may be DataFrames too. `item_feature={"topic": "categorical=topic"}`, and so
    `user_feature` and `context`. The folder has the bytes of `prepare table` on the same rows in
    Parquet; `sources` in its schema names files only.

    Raises DataError for data and ConfigError for options that cannot be used, TypeError for an
    option that does not exist; `out` is then as before.
    """
    given = {"user": user, "item": item, "tasks": tasks, "out": out, "timestamp": time}
    given = {"input": data, **given, **_by_option(options)}
    if time is not None and "timestamp" in options:
        raise TypeError("prepare() takes either time or timestamp; they are the same option")
    try:
        return table.prepare(**{name: _as_typed(name, one) for name, one in given.items()})
    except (ConfigError, DataError) as error:
        raise type(error)(_in_python(str(error))) from None


def _by_option(options: dict[str, Any]) -> dict[str, Any]:
    """Keywords by the names of `table.prepare`. Raises TypeError for one that it does not have."""
    names = {keyword: name for name, keyword in KEYWORDS.items()} | {"timestamp": "timestamp"}
    for keyword in options:
        if keyword not in names:
            hint = did_you_mean(keyword, names)
            raise TypeError(f"prepare() has no option {keyword!r}{hint}")
    return {names[keyword]: value for keyword, value in options.items()}


def _as_typed(name: str, value: Any) -> Any:
    """The value of an option as the command has it: names of columns and specs are text."""
    keyword = KEYWORDS[name]
    if name in table.FILES:
        return _place(keyword, value)
    if name in COLUMNS:
        if value is None and PARAMETERS[name].default is not None:
            raise ConfigError(f"{keyword} must be the name of a column, got None")
        return None if value is None else str(value)
    if name in SPECS:
        return None if value is None else _specs(keyword, value)
    if name == "out":
        if not isinstance(value, str | os.PathLike):
            raise ConfigError(f"out must be the path of a folder, got {type(value).__name__}")
        return Path(value)
    if name == "fractions" and isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return _of_type(keyword, value, HINTS[name])


def _place(keyword: str, value: Any) -> Any:
    if value is None or isinstance(value, str | os.PathLike):
        return value
    if is_frame(value):
        return Frame(value, "DataFrame" if keyword == "data" else keyword)
    hint = "; call collect() on it" if hasattr(value, "collect") else ""
    raise ConfigError(f"{keyword} must be a path or {WANTED}, got {type(value).__name__}{hint}")


def _specs(keyword: str, given: Any) -> list[str]:
    """NAME:KIND=COLUMN of each, from a dict of KIND=COLUMN or (KIND, COLUMN), or as they are."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, Mapping):
        return [f"{name}:{_spec(f'{keyword} {name}', one)}" for name, one in given.items()]
    if isinstance(given, Sequence) and all(isinstance(one, str) for one in given):
        return list(given)
    raise ConfigError(f"{keyword} must be a dict or a list of NAME:KIND=COLUMN, got {given!r}")


def _spec(what: str, given: Any) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, list | tuple) and len(given) == 2:
        return f"{given[0]}={given[1]}"
    raise ConfigError(f"{what} must be KIND=COLUMN or (KIND, COLUMN), got {given!r}")


def _of_type(keyword: str, value: Any, hint: Any) -> Any:
    """`value` as plain Python. Raises ConfigError unless it has the type of the option."""
    plain = value.item() if isinstance(value, np.generic) else value
    parts = get_args(hint) if get_origin(hint) is not Literal and get_args(hint) else (hint,)
    kinds = {str if get_origin(one) is Literal else one for one in parts}
    if type(plain) in kinds or (type(plain) is int and float in kinds):
        return plain
    names = " or ".join(sorted("None" if kind is NoneType else kind.__name__ for kind in kinds))
    raise ConfigError(f"{keyword} must be {names}, got {value!r}")


def _in_python(message: str) -> str:
    """A message of the command with its options as keywords."""

    def keyword(match: re.Match[str]) -> str:
        name = {"task": "tasks", "overwrite": "force"}.get(match[1], match[1].replace("-", "_"))
        if name not in PARAMETERS:
            return match[0]
        is_flag = PARAMETERS[name].default is False
        return f"{KEYWORDS[name]}=True" if is_flag else KEYWORDS[name]

    return FLAG.sub(keyword, message)
