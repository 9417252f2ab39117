"""`recsys-moe` that test_devices.py starts and stops: fit goes no further than step 30 by itself.

One of its processes says so there and waits until the signal has come to it. Then they agree on
stopping, which they ask each other every 16 steps: at step 32 on any machine, and not many epochs
later on a busy one, where sums in another order have grown into another result.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from recsys_moe import cli

if TYPE_CHECKING:
    import lightning

STEP = 30
WAITING = "waits for a signal"


def wait_for_signal(rank: int) -> None:
    """In process `rank` of several, at the end of step 30."""
    from recsys_moe.train.checkpoints import Checkpoints  # the starter needs none of it

    end_step = Checkpoints.on_train_batch_end

    def end_or_wait(own: Any, trainer: lightning.Trainer, *args: Any) -> None:
        if trainer.global_step == STEP and trainer.global_rank == rank:
            print(WAITING, file=sys.stderr, flush=True)
            while not own.stop.number:
                time.sleep(0.01)
        end_step(own, trainer, *args)

    Checkpoints.on_train_batch_end = end_or_wait  # type: ignore[method-assign]


if __name__ == "__main__":
    if "RANK" in os.environ:  # a process of a device, and not the command that starts them
        wait_for_signal(rank=0)
    cli.main()
