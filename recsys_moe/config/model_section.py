"""The section `model` of a configuration: the settings of the model that it names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, WithJsonSchema

from recsys_moe.model.registry import DEFAULT_MODEL, MODELS, find_model
from recsys_moe.model.settings import ModelConfig
from recsys_moe.section import named_schema


def model_config(value: Any) -> Any:
    """Settings of a model from a mapping. Raises ValueError."""
    if isinstance(value, ModelConfig):
        return value
    if not isinstance(value, dict):
        raise ValueError("input should be a mapping of settings")
    name = str(value.get("name", DEFAULT_MODEL))
    config = find_model(name).Config
    known = {key for model in MODELS.values() for key in model.Config.model_fields}
    for key in value:
        if key in known - config.model_fields.keys():
            raise ValueError(f"model.{key} is not a setting of model.name={name}; remove it")
    return config.model_validate({**value, "name": name})


def _schema() -> dict[str, Any]:
    """JSON schema of `model`."""
    sections = [named_schema(name, model.Config) for name, model in MODELS.items()]
    del sections[[*MODELS].index(DEFAULT_MODEL)]["required"]
    outside = {"name": {"type": "string", "pattern": ":"}}
    return {"anyOf": [*sections, {"type": "object", "properties": outside, "required": ["name"]}]}


Model = Annotated[
    SerializeAsAny[ModelConfig], BeforeValidator(model_config), WithJsonSchema(_schema())
]
