"""What is asked of a comparison, and the checks that need no data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recsys_moe.config.diff import flat
from recsys_moe.config.files import router_name, router_section
from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.lab.jobs.plan_file import Raw
from recsys_moe.routers import ROUTERS, find_router


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest:
    """The arguments of `compare`. Sections are unvalidated."""

    routers: Sequence[str]
    """Names of routers, or labels that `settings` gives a router."""
    seeds: Sequence[int]
    weights: Sequence[str] = ()
    """`0.9,0.1`: task weights in the order of schema.json; none: those of the configuration."""
    split: str = "test"
    ranking: bool = False
    """Also run top-N evaluation over the whole catalogue."""
    file: Raw | None = None
    """Common configuration file."""
    settings: dict[str, Raw] | None = None
    """Per label, over `file`."""
    typed: Raw | None = None
    """From the command line, over both; router keys go to the routers that have them."""
    follows_data: bool = True
    """Without a file: what is left out follows the data, instead of having fixed defaults."""

    def own(self, label: str) -> Raw:
        """The settings of a label."""
        return (self.settings or {}).get(label) or {}

    def router_of(self, label: str) -> str:
        """The router behind a label: the one that its settings name, else the label itself."""
        return router_name(self.own(label)) or label

    def keys_of(self, label: str) -> set[str]:
        """The settings that the router behind a label has. Raises ConfigError."""
        try:
            return set(find_router(self.router_of(label)).Config.model_fields)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def check(self) -> None:
        """Raise ConfigError for what needs no look at the data."""
        check_once("--routers", self.routers)
        self._check_labels()
        self._check_settings()
        self._check_typed()

    def _check_labels(self) -> None:
        known = {*ROUTERS, *(self.settings or {})}
        for label in self.routers:
            if label not in known and ":" not in label:  # package.module:Class
                raise ConfigError(
                    f"--routers must be routers or labels of --settings, got {label!r}; "
                    f"{suggestion(label, known)}"
                )

    def _check_settings(self) -> None:
        for label, section in (self.settings or {}).items():
            if not isinstance(section, dict | None):
                raise ConfigError(f"--settings {label} must hold sections, got {section!r}")
            _check_own_tasks(f"--settings {label}.tasks", self.own(label).get("tasks", {}))
            if label not in self.routers and self.router_of(label) not in ROUTERS:
                raise ConfigError(
                    f"--settings: unknown router {label!r}; {suggestion(label, ROUTERS)}; a label "
                    f"of your own names its router in {label}.model.router.name"
                )

    def _check_typed(self) -> None:
        section = router_section(self.typed or {})
        if "name" in section:
            raise ConfigError(f"--set model.router.name={section['name']}: use --routers")
        known = {key for label in self.routers for key in self.keys_of(label)}
        for key, value in section.items():
            if key not in known:
                hint = suggestion(key, known) if known else "leave it out"
                raise ConfigError(
                    f"--set model.router.{key}={value}: none of {', '.join(self.routers)} has this "
                    f"key; {hint}"
                )


def check_once(option: str, values: Sequence[Any]) -> None:
    """Raise ConfigError without values, and where one comes again."""
    if not values:
        raise ConfigError(f"{option} must name at least one; see `recsys-moe routers`")
    for value in values:
        if list(values).count(value) > 1:
            raise ConfigError(f"{option}: {value} is given twice; give each once")


def _check_own_tasks(where: str, section: Any) -> None:
    """A label may have its own training weights, but not its own evaluation weights."""
    if not isinstance(section, dict):
        raise ConfigError(f"{where} must hold sections, got {section!r}")
    for key, _ in flat(section):
        if key.endswith(".weight"):
            raise ConfigError(f"{where}.{key}: weights are common to all routers; use --weights")
