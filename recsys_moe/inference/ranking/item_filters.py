"""Conditions on the columns of items.parquet: `genres=Comedy`, `year>=1990`, `title~star`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import ROUND_FLOOR, Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.schema import FeatureColumn

FEATURES = FeatureColumn(name="", kind="numeric").column
"""What the columns of features begin with."""
CONDITION = re.compile(
    r"(?=\s*[^<>=!~\s])(?P<column>[^<>=!~]+)(?P<operator>!=|<=|>=|=|<|>|~)"
    r"\s*(?P<value>[^<>=!~\s].*)",
    re.DOTALL,
)
"""Only one way to match a text, so that 100,000 spaces take no longer than other characters."""
FORM = "COLUMN OP VALUE with OP one of = != < <= > >= ~"
SEPARATOR = "|"
"""Between the members of a text cell, as in MovieLens' genres."""
HALVES = pa.decimal128(21, 1)
BEYOND = Decimal(2**64)
"""Above and, negative, below any integer of 64 bits."""
Compare = Callable[[pa.Array, pa.Scalar], pa.Array]
NUMBERS: dict[str, Compare] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
TEXTS = ("=", "!=", "~")


def matching_items(items: pa.Table, where: Sequence[str]) -> Tensor:
    """bool (N,): the items for which every condition holds; a missing value satisfies none.

    Numbers are compared as numbers. For text, `=` asks whether the cell, or one of its members
    separated by "|", is the value; `!=` is its opposite; `~` whether the value occurs in the cell,
    whatever the case; an order of texts is not defined. Raises ConfigError for a condition of
    another form, an unknown column, or a value or operator that does not fit the column.
    """
    holds = torch.ones(items.num_rows, dtype=torch.bool)
    for condition in where:
        passes = _matches(items, condition).fill_null(False)
        holds &= torch.from_numpy(passes.to_numpy(zero_copy_only=False).copy())
    return holds


def allowed_items(items: pa.Table, where: Sequence[str], named_M: Tensor | None) -> Tensor:
    """Ascending indices of the items that `matching_items` keeps and, if given, are among
    `named_M`, where the number of items stands for an unknown one."""
    holds_N = matching_items(items, where)
    if named_M is not None:
        is_named_N = torch.zeros(len(holds_N) + 1, dtype=torch.bool)
        is_named_N[named_M] = True
        holds_N &= is_named_N[:-1]
    return holds_N.nonzero()[:, 0]


def filter_columns(items: pa.Table) -> list[str]:
    """Columns that conditions may name: all but dense indices, of items and of features."""
    names = [name for name in items.column_names if not name.startswith(FEATURES)]
    return [name for name in names if name != "item_index"]


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _matches(items: pa.Table, condition: str) -> pa.Array:
    try:
        condition.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--where must be text in UTF-8, got {condition!r}") from None
    parsed = CONDITION.fullmatch(condition)
    if not parsed:
        raise ConfigError(f"--where must look like {FORM}, got {condition!r}")
    column, operator, value = parsed["column"].strip(), parsed["operator"], parsed["value"].rstrip()
    if column not in filter_columns(items):
        hint = suggestion(column, filter_columns(items))
        raise ConfigError(f"--where {condition!r}: unknown column {column!r}; {hint}")
    values = items[column].combine_chunks()
    if is_number(values.type):
        return _number_matches(values, operator, value, condition)
    return _text_matches(values.cast(pa.string()), operator, value, condition)


def _number_matches(values: pa.Array, operator: str, value: str, condition: str) -> pa.Array:
    if operator not in NUMBERS:
        raise ConfigError(f"--where {condition!r}: {operator} needs text, the column holds numbers")
    try:
        number = Decimal(value)
    except InvalidOperation:
        number = Decimal("nan")
    if number.is_nan():  # nothing is above, below or equal to it
        raise ConfigError(f"--where {condition!r}: {value!r} is not a number")
    if pa.types.is_floating(values.type):
        return NUMBERS[operator](values.cast(pa.float64()), pa.scalar(float(number)))
    return NUMBERS[operator](values.cast(HALVES), pa.scalar(_half(number), HALVES))


def _half(number: Decimal) -> Decimal:
    """What compares with every 64-bit integer as `number` does, exactly: float64 would not."""
    number = min(max(number, -BEYOND), BEYOND)
    below = number.to_integral_value(ROUND_FLOOR)
    return below if below == number else below + Decimal("0.5")


def _text_matches(values: pa.Array, operator: str, value: str, condition: str) -> pa.Array:
    if operator == "~":
        return pc.match_substring(values, value, ignore_case=True)
    if operator not in ("=", "!="):
        raise ConfigError(f"--where {condition!r}: {operator} needs numbers, the column holds text")
    bounded = pc.binary_join_element_wise(SEPARATOR, values, SEPARATOR, "")
    member = pc.match_substring(bounded, f"{SEPARATOR}{value}{SEPARATOR}")
    return member if operator == "=" else pc.invert(member)
