"""Dataclasses from plain JSON whose every value has the type that the field names."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal


def typed(kind: Any, value: Any, where: str) -> Any:
    """`value`, as json.loads gives it, as a `kind`.

    A kind is a dataclass, int, float, str, a Literal, `X | None`, `tuple[X, ...]`, `dict[str, X]`
    or Any. Raises KeyError for a field that is missing, TypeError naming `where` for other types.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _instance(kind, _of(dict, value, where), where)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else typed(parts[0], value, where)
    if origin is tuple:
        whole = enumerate(_of(list, value, where))
        return tuple(typed(parts[0], one, f"{where}[{n}]") for n, one in whole)
    if origin is dict:
        pairs = _of(dict, value, where).items()
        return {key: typed(parts[1], one, f"{where}.{key}") for key, one in pairs}
    if origin is Literal:
        return _choice(parts, value, where)
    return value if kind is Any else _of(kind, value, where)


def _instance(kind: Any, raw: dict[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    unknown = sorted(raw.keys() - {field.name for field in fields(kind)})
    if unknown:
        raise TypeError(f"{where + ': ' if where else ''}unknown key {unknown[0]!r}")
    values = {}
    for field in fields(kind):
        if field.name in raw:
            name = f"{where}.{field.name}" if where else field.name
            values[field.name] = typed(hints[field.name], raw[field.name], name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise KeyError(field.name)
    return kind(**values)


def _choice(known: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, str) or value not in known:
        raise TypeError(f"{where} must be one of {', '.join(known)}, got {_shown(value)}")
    return value


def _of(kind: Callable[[Any], Any], value: Any, where: str) -> Any:
    """A whole number is a float too; true and false are no numbers."""
    wanted = (int, float) if kind is float else (kind,)
    if type(value) not in wanted:
        raise TypeError(f"{where} must be {NAMES[kind]}, got {_shown(value)}")
    if kind is float and not abs(value) <= sys.float_info.max:  # as a whole number may not be
        raise TypeError(f"{where} must be finite, got {_shown(value)}")
    return value


NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def _shown(value: Any) -> str:
    return repr(value)[:60]
