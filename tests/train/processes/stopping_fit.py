"""`recsys-moe` that test_devices.py starts and stops: fit goes no further than step 30 by itself.

The first process says so there and waits until the signal has come to it, so that the run ends at
the same step on any machine.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import lightning

from recsys_moe import cli
from recsys_moe.train.checkpoints import Checkpoints

STEP = 30
WAITING = "waits for a signal"


def wait_for_signal() -> None:
    """In the first process of several, at the end of a step and before they agree on stopping."""
    end_step = Checkpoints.on_train_batch_end

    def end_or_wait(own: Checkpoints, trainer: lightning.Trainer, *args: Any) -> None:
        if trainer.global_step == STEP and trainer.is_global_zero:
            print(WAITING, file=sys.stderr, flush=True)
            while not own.stop.number:
                time.sleep(0.01)
        end_step(own, trainer, *args)

    Checkpoints.on_train_batch_end = end_or_wait  # type: ignore[method-assign]


if __name__ == "__main__":
    if "RANK" in os.environ:  # a process of a device, and not the command that starts them
        wait_for_signal()
    cli.main()
