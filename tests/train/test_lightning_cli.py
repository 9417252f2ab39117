"""LightningCLI on the module and its data, with the configuration that Lightning writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.cli import LightningCLI

from recsys_moe import RecDataModule, RecModule
from recsys_moe.config.command_line import Sections
from recsys_moe.config.settings import Config, as_config, parse_config
from recsys_moe.errors import ConfigError
from tests.conftest import TINY_MODEL

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning and jsonargparse on small runs
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]


def test_the_configuration_that_it_writes_repeats_the_run_and_tests(
    prepared: Path, tmp_path: Path
) -> None:
    config = f"{{model: {TINY_MODEL}, trainer: {{batch_size: 64}}}}"
    first = command("fit", "--data.folder", str(prepared), "--model.config", config,
                    "--trainer.max_epochs=1", "--trainer.accelerator=cpu",
                    f"--trainer.default_root_dir={tmp_path}", *QUIET)  # fmt: skip
    written = tmp_path / "lightning_logs/version_0/config.yaml"
    again = command("fit", "--config", str(written))
    losses = [float(one.trainer.callback_metrics["val/loss"]) for one in (first, again)]
    assert losses[0] == losses[1]
    checkpoint = next(tmp_path.glob("lightning_logs/version_0/checkpoints/*.ckpt"))
    tested = command("test", "--config", str(written), "--ckpt_path", str(checkpoint))
    assert 0 < float(tested.trainer.callback_metrics["test/loss"]) < 2
    assert tested.model.config.trainer.batch_size == 64


@pytest.fixture
def parsed(prepared: Path) -> Callable[..., Config]:
    """The configuration of the module by these flags after `--model.config`."""

    def made(*flags: str) -> Config:
        words = [word if word.startswith("--") else f"--model.config{word}" for word in flags]
        given = [f"--data.folder={prepared}", *words]
        module = LightningCLI(RecModule, RecDataModule, args=given, run=False).model
        assert isinstance(module, RecModule)
        return module.config

    return made


@pytest.mark.parametrize(
    "flags",
    [
        ['={"model": {"embedding_dim": 8}, "trainer": {"batch_size": 64}}'],
        [".model.embedding_dim=8", ".trainer.batch_size=64"],
        ['={"model": {"embedding_dim": 8}}', ".trainer.batch_size=64"],
        ['={"model": {"embedding_dim": 4}}', ".model.embedding_dim=8", ".trainer.batch_size=64"],
    ],
)
def test_settings_that_every_model_has_are_those_of_the_default_model(
    flags: list[str], parsed: Callable[..., Config]
) -> None:
    sections = {"model": {"embedding_dim": 8}, "trainer": {"batch_size": 64}}
    assert parsed(*flags) == parse_config(sections)


@pytest.mark.parametrize(
    ("flags", "sections"),
    [
        ([".model.num_experts=4", ".model.router={name: topk, k: 1}"],
         {"model": {"num_experts": 4, "router": {"name": "topk", "k": 1}}}),
        ([".model.name=two_tower", ".model.embedding_dim=8"],
         {"model": {"name": "two_tower", "embedding_dim": 8}}),
        ([".model.tower_dims=[8, 4]", ".tasks={watch: {weight: 0.5}}"],
         {"model": {"tower_dims": [8, 4]}, "tasks": {"watch": {"weight": 0.5}}}),
        (["=quickstart"], None),
        ([], {}),
    ],
)  # fmt: skip
def test_flags_are_the_settings_of_a_file(
    flags: list[str], sections: Any, parsed: Callable[..., Config]
) -> None:
    assert parsed(*flags) == as_config("quickstart" if sections is None else sections)


def test_sections_of_the_command_are_those_of_a_configuration() -> None:
    assert [one.name for one in dataclasses.fields(Sections)] == [*Config.model_fields]


@pytest.mark.parametrize("flag", [".model.router.k=2", ".tasks.watch.weight=0.5"])
def test_a_flag_that_would_drop_the_settings_beside_it_is_refused(
    flag: str, parsed: Callable[..., Config]
) -> None:
    with pytest.raises(ConfigError, match=r"set all of .*, got .*; e.g. --model.config.*'{.*}'"):
        parsed('={"model": {"router": {"name": "topk"}}}', flag)


def test_one_setting_of_a_written_configuration_is_replaced(prepared: Path, tmp_path: Path) -> None:
    """Of a run that names nothing of the default model's own."""
    small = "{model: {embedding_dim: 8}, trainer: {batch_size: 64}}"
    trainer = ("accelerator=cpu", "max_steps=1", f"default_root_dir={tmp_path}")
    flags = [*QUIET, *(f"--trainer.{one}" for one in trainer)]
    command("fit", f"--data.folder={prepared}", f"--model.config={small}", *flags)
    written = tmp_path / "lightning_logs/version_0/config.yaml"
    override = ["--model.config.trainer.batch_size=32", "--trainer.fast_dev_run=true"]
    again = command("fit", f"--config={written}", *override)
    sections = {"model": {"embedding_dim": 8}, "trainer": {"batch_size": 32}}
    assert again.model.config == parse_config(sections)
    assert 0 < float(again.trainer.callback_metrics["val/loss"]) < 2


class Descends(RecModule):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_optimizer_of_the_command_is_refused_and_that_of_a_subclass_is_used(
    prepared: Path,
) -> None:
    config = {"model": TINY_MODEL, "trainer": {"batch_size": 64}}
    words = ["fit", f"--data.folder={prepared}", f"--model.config={config}"]
    words += ["--trainer.accelerator=cpu", "--trainer.fast_dev_run=true", *QUIET]
    said = (
        r"--optimizer must not .*got torch.optim.*SGD; set model.config.optim.*override configure"
    )
    with pytest.raises(ConfigError, match=said):
        command(*words, "--optimizer=SGD", "--optimizer.lr=0.1")
    own = LightningCLI(Descends, RecDataModule, args=words)
    assert isinstance(own.trainer.optimizers[0], torch.optim.SGD)


def command(*words: str) -> Any:
    return LightningCLI(RecModule, RecDataModule, args=[*words])
