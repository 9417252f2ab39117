"""Options that name a file or folder must not be empty: Path("") would be the current folder."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from recsys_moe.errors import ConfigError


def refuse(command: Any) -> None:
    """Make every path of a command, or of those below it, raise ConfigError where it is empty."""
    for parameter in command.params:
        check = partial(_checked, command.callback, parameter, parameter.process_value)
        parameter.process_value = check
    for below in getattr(command, "commands", {}).values():
        refuse(below)


def _checked(callback: Any, parameter: Any, process: Any, context: Any, value: Any) -> Any:
    """As `process`, which would make a path of a text."""
    given = value if isinstance(value, list | tuple) else [value]
    if "" in given and _is_path(callback, parameter.name):
        shown = next((name for name in parameter.opts if name.startswith("--")), parameter.name)
        raise ConfigError(f"{shown} must name a file or folder, got ''; . is the current folder")
    return process(context, value)


def _is_path(callback: Any, name: str) -> bool:
    kind = get_type_hints(inspect.unwrap(callback))[name]
    inside = [one for part in get_args(kind) for one in (part, *get_args(part))]
    return Path in (kind, *inside)
