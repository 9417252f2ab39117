"""Finds, reads and merges configuration files and `--set`, before validation."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from recsys_moe.config.renamed import with_new_names
from recsys_moe.config.text import PlainLoader
from recsys_moe.errors import ConfigError, suggestion

LARGEST = 1 << 16
"""Bytes of a configuration: PyYAML may take 50 microseconds for each."""
DEEPEST = 20
"""Dots in the key of `--set`."""
NAMED = ("model.router", "tasks.weighting")
"""Sections that may be written as a bare name."""


def read_config_file(file: str, *, warn: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file, with new names of settings. Raises ConfigError.

    `warn`: about old names.
    """
    path = find_config(file)
    if (size := path.stat().st_size) > LARGEST:
        raise ConfigError(f"{path} must have at most {LARGEST} bytes, got {size}")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), PlainLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict | None):
        raise ConfigError(f"{path} must hold a mapping of sections, got {type(raw).__name__}")
    return with_new_names(raw or {}, warn=warn)


def find_config(file: str) -> Path:
    """`file` itself, or the shipped config of that name (with or without .yaml)."""
    path = Path(file)
    if path.is_file():
        return path
    shipped = configs_folder() / f"{path.stem}.yaml"
    if len(path.parts) == 1 and path.suffix in ("", ".yaml") and shipped.is_file():
        return shipped
    names = (shipped.stem for shipped in configs_folder().glob("*.yaml"))
    raise ConfigError(
        f"--config {file}: no such file, and no shipped config of that name; "
        f"{suggestion(path.stem, names)}"
    )


def configs_folder() -> Path:
    """Shipped configs: inside the package in a wheel, beside it in an editable install."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def parse_set(assignment: str) -> dict[str, Any]:
    """`a.b=value` -> {"a": {"b": value}}; the value is read as YAML."""
    key, separator, text = assignment.partition("=")
    if not separator or not all(key.split(".")):
        raise ConfigError(f"--set must look like section.key=value, got {shown(assignment)}")
    if key.count(".") > DEEPEST:
        raise ConfigError(f"--set {shown(key)}: nested too deeply; see `recsys-moe config schema`")
    try:
        value = yaml.load(text, PlainLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"--set {key}: {shown(text)} is not a YAML value") from None
    if isinstance(value, dict) and text.endswith(":"):  # `pkg.module:`, not a key without a value
        value = text
    if key in NAMED and isinstance(value, str):  # a bare name, which other keys join
        key = f"{key}.name"
    return with_new_names(nested(key, value))


def shown(text: str) -> str:
    """`text` quoted for messages, truncated."""
    return repr(text if len(text) <= 200 else text[:200] + "...")


def nested(key: str, value: Any) -> dict[str, Any]:
    """`("a.b", 1)` -> {"a": {"b": 1}}."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return typing.cast(dict[str, Any], value)


def without(sections: dict[str, Any], key: str) -> dict[str, Any]:
    """Less the value of `a.b`; `sections` are not changed."""
    first, _, rest = key.partition(".")
    if rest:
        return {**sections, first: without(sections[first], rest)}
    return {name: value for name, value in sections.items() if name != first}


def merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`top` over `base`, section by section; neither is changed.

    The settings of another `weighting` are dropped.
    """
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if key == "weighting" and isinstance(value, str | dict):
            below, value = _bare(below), _bare(value)
            if {"name"} <= below.keys() & value.keys() and below["name"] != value["name"]:
                below = {}
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def merge_all(mappings: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Later mappings over earlier ones."""
    return reduce(merge, mappings, {})


def router_section(raw: dict[str, Any]) -> dict[str, Any]:
    """`model.router` of an unvalidated mapping; a bare name becomes a section."""
    return named_section(raw, "model", "router")


def named_section(raw: dict[str, Any], outer: str, inner: str) -> dict[str, Any]:
    """Section `outer.inner` of an unvalidated mapping; a bare name becomes a section."""
    section = raw.get(outer)
    return _bare(section.get(inner) if isinstance(section, dict) else None)


def _bare(section: Any) -> dict[str, Any]:
    if isinstance(section, str):
        return {"name": section}
    return dict(section) if isinstance(section, dict) else {}


def model_name(raw: dict[str, Any]) -> str | None:
    """The name of the model in `model.name` as text; None without one."""
    section = raw.get("model")
    name = section.get("name") if isinstance(section, dict) else None
    return None if name is None else str(name)


def router_name(raw: dict[str, Any]) -> str | None:
    """The name in `model.router` as text; None without one."""
    name = router_section(raw).get("name")
    return None if name is None else str(name)
