"""Names of version 0.1 are read: of settings and of an option with a warning, and of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe import fit
from recsys_moe.cli.configuration import resolve
from recsys_moe.config.renamed import RENAMED
from recsys_moe.config.settings import Config, ConfigError, parse_config
from recsys_moe.model import old_names
from tests.conftest import TINY_MODEL, Command

OTHER: dict[str, tuple[Any, Any]] = {
    "data.unseen_rate": (0.25, 0.25),
    "data.fresh_negatives": (True, True),
    "data.negative_power": (0.75, 0.75),
    "data.negative_user_power": (0.5, 0.5),
    "data.shuffle_window": (64, 64),
    "model.main_effects": (False, False),
    "model.skip_rank": (3, 3),
    "model.skip_maps": (False, True),
    "model.history": ("items", "items"),
    "model.item_history": ("users", "users"),
    "model.history_dim": (8, 8),
    "model.history_levels": (3, 3),
    "model.history_slopes": (True, "linear"),
    "model.history_dropout": (0.25, 0.25),
    "optim.gate_rate": (0.5, 0.5),
    "optim.average": (0.9, 0.9),
    "optim.losses": ("absolute", "absolute"),
}
"""Value under the old name, and the value under the new one that it means."""
NEEDED = {"data": {"resample_negatives": True}, "model": {"bilinear_rank": 2}}
"""Settings that others of `OTHER` need."""


def value(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


def settings(old: str, text: Any) -> dict[str, Any]:
    """A configuration with `old` and what it needs."""
    section, name = old.split(".")
    needed = NEEDED.get(section, {})
    return {
        section: {name: text}
        | {k: v for k, v in needed.items() if RENAMED[old] != f"{section}.{k}"}
    }


def test_every_renamed_setting_is_tried_here() -> None:
    assert OTHER.keys() == RENAMED.keys()


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_setting_is_read_with_a_warning_that_names_the_new_one(
    old: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the file of --config and in --set; a configuration that a command wrote needs none."""
    given_, meant = OTHER[old]
    raw = settings(old, given_)
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(raw))
    ((section, values),) = raw.items()
    sets = [f"{section}.{key}={json.dumps(one)}" for key, one in values.items()]
    for file, typed in ((str(tmp_path / "old.yaml"), []), (None, sets)):
        caplog.clear()
        assert value(resolve(file, None, {}, typed), RENAMED[old]) == meant
        (warning,) = caplog.messages
        assert warning.startswith(old) and f" is now {RENAMED[old]}" in warning
    caplog.clear()
    assert value(parse_config(raw), RENAMED[old]) == meant
    assert not caplog.records


@pytest.mark.parametrize(
    ("old", "given_", "meant"),
    [
        ("model.skip_maps", True, False),
        ("model.skip_maps", False, True),
        ("model.skip_maps", "no", True),
        ("model.history_slopes", False, "levels"),
    ],
)
def test_a_switch_becomes_the_value_that_it_meant(old: str, given_: bool, meant: object) -> None:
    assert value(parse_config(settings(old, given_)), RENAMED[old]) == meant


@pytest.mark.parametrize("old", RENAMED)
def test_both_names_of_a_setting_are_refused(old: str) -> None:
    section, name = RENAMED[old].split(".")
    raw = settings(old, OTHER[old][0])
    raw[section][name] = OTHER[old][1]
    with pytest.raises(ConfigError, match=f"^{old} .*{RENAMED[old]}.*; remove {old}$"):
        parse_config(raw)


def test_what_a_command_types_under_either_name_goes_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("optim: {gate_rate: 0.5, average: 0.9}\n")
    sets = ["optim.router_lr_multiplier=2", "optim.average=0.5"]
    optim = resolve(str(tmp_path / "old.yaml"), None, {}, sets).optim
    assert (optim.router_lr_multiplier, optim.ema_decay) == (2, 0.5)


def test_fit_reads_an_old_setting_with_a_warning(
    prepared: Path, tmp_path: Path, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also over the settings of a model to start from, which have the new names."""
    trainer = {"max_epochs": 1, "batch_size": 512}
    raw = {"model": TINY_MODEL, "trainer": trainer, "optim": {"average": 0.5}}
    for name, start in (("new", None), ("warm", run)):
        caplog.clear()
        fit(prepared, tmp_path / name, raw, init_from=start)
        assert caplog.messages[0].startswith("optim.average is now optim.ema_decay;")
        kept = yaml.safe_load((tmp_path / name / "config.yaml").read_text())
        assert kept["optim"]["ema_decay"] == 0.5 and "average" not in kept["optim"]


def test_from_is_the_old_name_of_init_from(
    command: Command, prepared: Path, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["fit", "--data", prepared, "--out", tmp_path / "new", "--dry-run"]
    losses = []
    for option in ("--init-from", "--from"):
        assert not [line for line in caplog.messages if "--from" in line]
        losses.append(json.loads(command(*words, option, run).out)["loss_of_first_batch"])
    assert losses[0] == losses[1] != json.loads(command(*words).out)["loss_of_first_batch"]
    assert [line for line in caplog.messages if line.startswith("--from is now --init-from;")]
    assert "--from " not in command("fit", "--help").out


OLD, NEW = list(old_names.RENAMED), list(old_names.RENAMED.values())
PARTS = st.sampled_from([*OLD, *NEW, "model", "0", "weight", "history_of"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map(".".join)


@given(st.dictionaries(NAMES, st.integers(), max_size=6))
def test_weights_keep_values_and_order_under_new_names(state: dict[str, int]) -> None:
    """Part by part; names of today stay, so that reading twice is reading once."""
    found = old_names.with_new_parts(state)
    renamed = [
        (".".join(old_names.RENAMED.get(part, part) for part in name.split(".")), value)
        for name, value in state.items()
    ]
    assert list(found.items()) == list(dict(renamed).items())
    assert not {part for name in found for part in name.split(".")} & {*OLD}
    assert old_names.with_new_parts(found) == found
