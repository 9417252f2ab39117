"""The sections of a configuration as LightningCLI reads them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from recsys_moe.errors import ConfigError


@dataclasses.dataclass
class Sections:
    """What LightningCLI lets flags change one by one, down to the settings of a section.

    It would build a Config by itself, with the settings that all models share and no others.
    """

    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    tasks: dict[str, Any] = dataclasses.field(default_factory=dict)
    penalties: dict[str, Any] = dataclasses.field(default_factory=dict)
    optim: dict[str, Any] = dataclasses.field(default_factory=dict)
    trainer: dict[str, Any] = dataclasses.field(default_factory=dict)

    def as_mapping(self) -> dict[str, Any]:
        """As in a file. Raises ConfigError for a flag below the settings of a section."""
        for section, settings in vars(self).items():
            for key, value in settings.items():
                if isinstance(value, dict) and len(value) == 1:
                    _check_whole(f"{section}.{key}", *value.items())
        return dict(vars(self))


def _check_whole(place: str, setting: tuple[str, Any]) -> None:
    """jsonargparse puts such a flag, unread, in the place of all settings beside it."""
    name, value = setting
    try:
        is_unread = isinstance(value, str) and not isinstance(json.loads(value), str)
    except ValueError:
        return
    if is_unread:
        raise ConfigError(
            f"a flag must set all of {place}, got {place}.{name} {value}; e.g. "
            f"--model.config.{place} '{{{name}: {value}, ...}}'"
        )
