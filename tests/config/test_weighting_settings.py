"""`tasks.weighting`: a name or a section, beside the sections of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from recsys_moe.cli.settings import resolve
from recsys_moe.config.files import merge, parse_set
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import ConfigError


def weighting(file: Any, *sets: str) -> dict[str, Any]:
    raw = {"tasks": {"weighting": file}} if file is not None else {}
    for one in sets:
        raw = merge(raw, parse_set(one))
    return parse_config(raw).tasks.weighting.model_dump()


def test_a_name_and_its_settings_join_however_they_are_given() -> None:
    wanted = {"name": "gradnorm", "alpha": 0.5, "lr": 0.025}
    assert weighting({"name": "gradnorm", "alpha": 0.5}) == wanted
    assert weighting("gradnorm", "tasks.weighting.alpha=0.5") == wanted
    assert weighting(None, "tasks.weighting=gradnorm", "tasks.weighting.alpha=0.5") == wanted
    assert weighting({"alpha": 0.5}, "tasks.weighting=gradnorm") == wanted


def test_another_method_drops_the_settings_of_the_one_before() -> None:
    given = {"name": "gradnorm", "alpha": 0.5}
    assert weighting(given, "tasks.weighting=famo") == {"name": "famo", "lr": 0.025, "decay": 0.01}
    assert weighting(given, "tasks.weighting=fixed") == {"name": "fixed"}


def test_a_configuration_without_it_is_fixed_and_its_tasks_are_read_as_before() -> None:
    assert weighting(None) == {"name": "fixed"}
    config = parse_config({"tasks": {"watch": {"weight": 0.9}}})
    assert {name: task.weight for name, task in config.tasks.named.items()} == {"watch": 0.9}
    assert Config() == parse_config({})


@pytest.mark.parametrize("given", [5, [1], True])
def test_what_is_no_name_and_no_section_is_an_error(given: Any) -> None:
    with pytest.raises(ConfigError, match="tasks.weighting must be one of fixed"):
        weighting(given)


def test_a_task_called_weighting_cannot_be_configured() -> None:
    with pytest.raises(ConfigError, match="tasks.weighting: unknown key 'weight'"):
        weighting({"weight": 0.5})


def test_the_commented_yaml_reads_back(tmp_path: Path) -> None:
    config = resolve(None, None, {}, ["tasks.weighting=famo", "tasks.watch.weight=0.9"])
    text = config.to_yaml(comments=True)
    assert parse_config(yaml.safe_load(text)) == config
    assert "# Weight decay of these logits" in text
