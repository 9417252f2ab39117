"""LightningCLI on the module and its data, with the configuration that Lightning writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.cli import LightningCLI

from recsys_moe import RecDataModule, RecModule
from tests.conftest import TINY_MODEL

QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]


@pytest.mark.filterwarnings("ignore")  # of Lightning and jsonargparse on this small run
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


def command(*words: str) -> Any:
    return LightningCLI(RecModule, RecDataModule, args=[*words])
