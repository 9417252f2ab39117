"""Validation by pydantic: sections of the configuration, and dataclasses from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

T = TypeVar("T")
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Error types of unknown keys."""
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""`__pydantic_config__` of a dataclass and of those nested in it."""


class Section(BaseModel):
    """Named settings. Unknown keys and booleans in place of numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    removed: ClassVar[Mapping[str, tuple[tuple[Any, ...], str]]] = {}
    """Removed settings by name: values that are read and ignored, and the error for others."""

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for name, (ignored, rule) in cls.removed.items():
            if name in values and values[name] not in ignored:
                raise ValueError(rule)
        return {name: value for name, value in values.items() if name not in cls.removed}

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would read true as 1."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        listed = isinstance(value, list) and any(isinstance(entry, bool) for entry in value)
        if listed or (isinstance(value, bool) and wanted in (int, float)):
            raise ValueError("input should be a number and not a switch")
        return value


def named_schema(name: str, section: type[Section]) -> dict[str, Any]:
    """JSON schema of a section that is chosen by its `name`."""
    schema = section.model_json_schema()
    schema["title"] = name
    schema["properties"]["name"] = {"const": name}
    return {**schema, "required": ["name"]}


def validated(kind: type[T], raw: Any) -> T:
    """`raw`, as json.loads gives it, as a `kind`. Raises TypeError with the key's path."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(raw))
    except ValidationError as error:
        raise TypeError(_problem(error)) from None
    except RecursionError:
        raise TypeError("nested too deeply") from None


def first_problem(error: ValidationError) -> Any:
    """The problem to report: an unknown key first, which may explain a missing one."""
    errors = error.errors()
    return next((one for one in errors if one["type"] in UNKNOWN), errors[0])


def _problem(error: ValidationError) -> str:
    """One problem in one line."""
    first = first_problem(error)
    where = ".".join(map(str, first["loc"]))
    if first["type"] in UNKNOWN:
        return f"unknown key {where!r}"
    if first["type"] in ("missing", "missing_argument"):
        return f"key {where!r} is missing"
    rule = first["msg"].removeprefix("Input ").removeprefix("should be ")
    return f"{where} must be {rule}, got {repr(first['input'])[:60]}"
