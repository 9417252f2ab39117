"""What every section of the configuration, the routers' among them, agrees on."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """Named settings: an unknown key is an error, and so is true or false for a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would read true as 1."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        listed = isinstance(value, list) and any(isinstance(entry, bool) for entry in value)
        if listed or (isinstance(value, bool) and wanted in (int, float)):
            raise ValueError("input should be a number and not a switch")
        return value
