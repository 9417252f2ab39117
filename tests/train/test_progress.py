"""Progress: the mean loss of the epoch so far, and a line per epoch."""

from __future__ import annotations

import csv
import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recsys_moe.config.settings import parse_config
from recsys_moe.train import callbacks
from recsys_moe.train.fit import fit
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL
from tests.lab.compare.test_compare_terminal import screen

LINE = re.compile(r"epoch (\d)/2 step (\d+)/25 loss ([\d.]+), ")


def test_the_shown_loss_is_the_mean_of_the_epoch_so_far(
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And not that of the last step that was looked at, here the first of 25."""
    sums = []
    add = RecModule._add_to_epoch

    def spy(self: RecModule, loss_sum: Any, output: Any) -> None:
        sums.append((loss_sum.item(), len(output.logits_BT)))
        add(self, loss_sum, output)

    monkeypatch.setattr(RecModule, "_add_to_epoch", spy)
    monkeypatch.setattr(callbacks, "SECONDS_BETWEEN_LINES", 0.0)
    trainer = {"max_epochs": 2, "batch_size": 64}
    with caplog.at_level(logging.INFO, logger="recsys_moe.fit"):
        fit(parse_config({"model": TINY_MODEL, "trainer": trainer}), prepared, tmp_path / "run")
    shown = [(int(e), int(s), float(loss)) for e, s, loss in LINE.findall(caplog.text)]
    assert [(epoch, step) for epoch, step, _ in shown] == [
        (epoch, step) for epoch in (1, 2) for step in range(1, 26)
    ]
    for epoch, step, loss in shown:
        done = sums[25 * (epoch - 1) :][:step]
        mean = sum(total for total, _ in done) / sum(rows for _, rows in done)
        assert loss == pytest.approx(mean, abs=6e-5)  # four digits
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines()))
    for epoch, step, loss in shown:
        assert step < 25 or loss == pytest.approx(float(rows[epoch - 1]["train/loss"]), abs=6e-5)


def test_the_bar_waits_for_the_device_twice_a_second_and_not_every_step(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=10.0)
    monkeypatch.setattr(callbacks, "time", clock)
    module = SimpleNamespace(mean_loss=lambda: asked.append(clock.now) or 0.25)
    monkeypatch.setattr(callbacks.RichProgressBar, "get_metrics", lambda *_: {"v_num": "events"})
    bar: Any = callbacks.Bar()
    for step in range(1000):  # a millisecond each
        clock.now = 10 + step / 1000
        assert bar.get_metrics(None, module) == {"loss": 0.25}
    assert asked == [10.0, 10.5]


def test_lines_say_how_long_at_most_and_how_long_without_a_better_epoch(
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A clock that a step of 25 moves by 12 s: an epoch takes 300 s, the budget is 9.

    No epoch is better by 1e6 than the first: patience ends the run after 4. At step 13 of the
    second epoch 8 - 13/25 = 7.48 epochs of 300 s = 2,244 s are left.
    """
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    step = RecModule.training_step

    def ticking(self: RecModule, *args: Any) -> Any:
        clock.now += 12
        return step(self, *args)

    monkeypatch.setattr(RecModule, "training_step", ticking)
    monkeypatch.setattr(callbacks, "time", clock)
    trainer = {"max_epochs": 9, "batch_size": 64, "patience": 3, "min_delta": 1e6}
    with caplog.at_level(logging.INFO, logger="recsys_moe.fit"):
        fit(parse_config({"model": TINY_MODEL, "trainer": trainer}), prepared, tmp_path / "run")
    (middle,) = (line for line in caplog.messages if line.startswith("epoch 2/9 step 13/25"))
    assert middle.endswith("0 steps/s, at most 37 min left")
    ends = [line.partition("; ")[2] for line in caplog.messages if " done in 300.0 s: " in line]
    assert ends == [
        "at most 40 min left",
        "no improvement for 1 of 3 epochs; at most 35 min left",
        "no improvement for 2 of 3 epochs; at most 30 min left",
        "no improvement for 3 of 3 epochs",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((0.2, "1 s"), (59.4, "59 s"), (59.6, "1 min"), (200, "3 min 20 s"), (755, "12 min")),
        *((18180, "5 h 3 min"), (40000, "11 h"), (187200, "2 d 4 h"), (86400, "1 d")),
    ],
)
def test_a_duration_is_said_in_the_units_that_matter(seconds: float, said: str) -> None:
    assert callbacks.duration(seconds) == said


@pytest.mark.slow
def test_a_terminal_keeps_a_line_per_epoch_and_stdout_has_the_result_alone(
    prepared: Path, tmp_path: Path
) -> None:
    tiny = [f"--set=model={json.dumps(TINY_MODEL)}", "--max-epochs=2", "--batch-size=64"]
    start = [sys.executable, "-m", "recsys_moe.cli", "fit", f"--data={prepared}", "--json"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"}
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*start, f"--out={tmp_path / 'run'}", *tiny],
        env={**env, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=terminal, text=True,
    ) as process:  # fmt: skip
        os.close(terminal)
        seen = screen(controller)
        assert process.stdout is not None
        result = json.loads(process.stdout.read())
    assert process.returncode == 0 and result["split"] == "val"
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines()))
    for epoch, row in enumerate(rows, 1):
        (line,) = re.findall(rf"epoch {epoch}/2 done in [\d.]+ s: (.*)", seen)
        assert f"val/loss {float(row['val/loss']):.4f}" in line
        assert f"val/watch/auc {float(row['val/watch/auc']):.4f}" in line
