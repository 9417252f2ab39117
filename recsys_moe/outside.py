"""Classes from outside, named `package.module:Class` in a configuration."""

from __future__ import annotations

import importlib
from collections.abc import Mapping


def import_class(setting: str, name: str, command: str) -> object:
    """What `name` names. `command`: lists the names without a colon. Raises ValueError."""
    module_name, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), class_name]):
        raise ValueError(
            f"{setting} must look like package.module:Class, got {name!r}; "
            f"{command} the names without a colon"
        )
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # whatever the module raises
        raise ValueError(
            f"{setting} {name!r} cannot be imported: {type(error).__name__}: {error}; "
            f"is it on PYTHONPATH, and does `python -c 'import {module_name}'` work?"
        ) from None


def not_derived(setting: str, name: str, found: object, base: str) -> ValueError:
    """For what is not a class derived from `base`."""
    return ValueError(
        f"{setting} {name!r} must be a subclass of {base}, got {found!r}; derive the class from it"
    )


def refuse_missing(setting: str, name: str, needs: Mapping[str, bool], where: str) -> None:
    """Raise ValueError unless all that a class needs, in words, is there."""
    if missing := [what for what, is_there in needs.items() if not is_there]:
        raise ValueError(f"{setting} {name!r} must have {' and '.join(missing)}; see {where}")
