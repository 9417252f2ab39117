"""Commented YAML, the JSON schema of routers, and messages for invalid settings."""

from __future__ import annotations

import json
import textwrap
import typing
from collections.abc import Mapping
from itertools import starmap
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from recsys_moe.errors import suggestion
from recsys_moe.model.weighting import CONFIGS
from recsys_moe.section import UNKNOWN, Section, first_problem, named_schema

OWN_WORDS = ("model.", "tasks.", "penalties.", "data.", "optim.", "trainer.")
"""Prefixes of messages that already state rule, value and remedy."""
WIDTH = 96


class PlainLoader(yaml.SafeLoader):
    """YAML without aliases: ten nested ones would expand a short file beyond any memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not accepted; write the value out")
        return super().compose_node(parent, index)


def commented_yaml(section: Section, depth: int = 0) -> str:
    """`section` as YAML, each key below its documentation."""
    margin = "  " * depth
    text = ""
    for key, value in section:
        text += "".join(f"{margin}# {line}\n" for line in _explained(section, key))
        if isinstance(value, Section):
            text += f"{margin}{key}:\n{commented_yaml(value, depth + 1)}"
        else:
            plain = section.model_dump(mode="json", include={key})
            text += "".join(f"{margin}{line}\n" for line in yaml.safe_dump(plain).splitlines())
    return text


def _explained(section: Section, key: str) -> list[str]:
    """The documentation and the accepted values of a key, wrapped."""
    field = type(section).model_fields.get(key)
    if field is None:  # a task's
        return []
    parts = [field.description or "", _choices(field), _range(field)]
    return textwrap.wrap(" ".join(filter(None, parts)), WIDTH, break_long_words=False)


def _choices(field: FieldInfo) -> str:
    if typing.get_origin(field.annotation) is not typing.Literal:
        return ""
    return f"One of {', '.join(map(str, typing.get_args(field.annotation)))}."


def _range(field: FieldInfo) -> str:
    """`[>= 0, < 1]`, or nothing without bounds."""
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = [
        f"{sign} {getattr(rule, name)}"
        for rule in field.metadata
        for name, sign in signs.items()
        if hasattr(rule, name)
    ]
    return f"[{', '.join(bounds)}]" if bounds else ""


def weighting_schema() -> dict[str, Any]:
    """JSON schema of `tasks.weighting`: a name or a section."""
    return {"anyOf": [{"enum": list(CONFIGS)}, *starmap(named_schema, CONFIGS.items())]}


def answer(error: ValidationError, root: type[Section], chosen: Mapping[str, type[Section]]) -> str:
    """The first problem in one line: dotted key, rule, value and remedy.

    `root`: the kind of configuration; `chosen`: by dotted key, that of a section with a name.
    """
    first = first_problem(error)
    location = [part for part in first["loc"] if isinstance(part, str)]  # the rest are positions
    section, key = location[:-1], "".join(location[-1:])
    fields = _fields(section, root, chosen)
    if first["type"] in UNKNOWN:
        where = ".".join(section) or "the configuration"
        return f"{where}: unknown key {key!r}; {suggestion(key, fields)}"
    text = first["msg"].removeprefix("Value error, ")
    if text.startswith(OWN_WORDS):
        return text
    where = ".".join(location)
    given = _shown(first.get("input"))
    return f"{where}: {text[0].lower()}{text[1:]}{given}{_remedy(where, fields, key)}"


def _fields(
    section: list[str], root: type[BaseModel], chosen: Mapping[str, type[BaseModel]]
) -> dict[str, FieldInfo]:
    """The fields of the section at this dotted path."""
    if (found := chosen.get(".".join(section[:2]))) is not None:
        return found.model_fields
    model = root
    for name in section:
        if name in model.model_fields:
            model = typing.cast(type[BaseModel], model.model_fields[name].annotation)
            if not hasattr(model, "model_fields"):  # a value of several kinds, and one of these
                return {}
        else:  # the name of a task
            model = getattr(model, "entry", model)
    return model.model_fields


def _shown(given: Any) -> str:
    if isinstance(given, dict | BaseModel):
        return ""
    plain = given is None or isinstance(given, bool)
    return f", got {json.dumps(given) if plain else repr(given)}"


def _remedy(where: str, fields: dict[str, FieldInfo], key: str) -> str:
    """A valid setting: the example of the field or its default."""
    field = fields.get(key)
    if field is None:
        return f"; its keys: {', '.join(fields)}"
    value = field.examples[0] if field.examples else field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return f"; its keys: {', '.join(type(value).model_fields)}"
    if value is PydanticUndefined:
        return "; set it"
    return f"; e.g. {where}={value if isinstance(value, str) else json.dumps(value)}"
