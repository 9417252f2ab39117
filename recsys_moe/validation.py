"""Dataclasses from plain JSON whose every value has the type that the field names."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

T = TypeVar("T")
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""`__pydantic_config__` of such a dataclass, and of those in it that name none."""


def validated(kind: type[T], raw: Any) -> T:
    """`raw`, as json.loads gives it, as a `kind`. Raises TypeError with the key's path."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(raw))
    except ValidationError as error:
        raise TypeError(_problem(error)) from None
    except RecursionError:
        raise TypeError("it is nested without end") from None


def _problem(error: ValidationError) -> str:
    """One problem in one line; a key that is misspelt explains one that is missing."""
    errors = error.errors(include_url=False)
    unknown = ("extra_forbidden", "unexpected_keyword_argument")
    first = next((one for one in errors if one["type"] in unknown), errors[0])
    where = ".".join(map(str, first["loc"]))
    if first["type"] in unknown:
        return f"unknown key {where!r}"
    if first["type"] in ("missing", "missing_argument"):
        return f"key {where!r} is missing"
    rule = first["msg"].removeprefix("Input ").removeprefix("should be ")
    return f"{where} must be {rule}, got {repr(first['input'])[:60]}"
