"""What every section of the configuration, the routers' among them, agrees on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator


class Section(BaseModel):
    """Named settings: an unknown key is an error, and so is true or false for a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    removed: ClassVar[Mapping[str, tuple[tuple[Any, ...], str]]] = {}
    """By name settings of old files: the values that are still read, and ignored; and the rule and
    remedy for any other."""

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
