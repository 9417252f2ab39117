"""What `compare` and `tune` say while their runs end."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from recsys_moe.lab.jobs.executor import Job, Outcome
from recsys_moe.lab.jobs.local_runs import Progress


def test_the_rest_takes_as_long_as_what_ran(caplog: pytest.LogCaptureFixture) -> None:
    """b and c took 270 s and leave 2 of 5: 2 x 135 s are 4.5 minutes. a was there, c failed."""
    caplog.set_level(logging.INFO, "recsys_moe.local_runs")
    progress = Progress(5, "runs")
    progress.start = time.monotonic() - 270
    for name, exit_code, started in (("a", 0, 0), ("b", 0, 2), ("c", 1, 1)):
        progress.add(Outcome(Job(name, (), Path(f"{name}.log")), exit_code, started), " (loss 0.4)")
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "2 of 5 runs: b (loss 0.4), about 14 min left",  # 3 x 270 s
        "failed: c (exit 1, log c.log)",
        "2 of 5 runs: c (loss 0.4), about 5 min left",
    ]
