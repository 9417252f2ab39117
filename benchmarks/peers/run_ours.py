"""`recsys-moe fit` as users meet it: through the command line, whole loop, run folder and all."""

from __future__ import annotations

import sys
from typing import Any

from clock import Clock, parse_options

from recsys_moe import cli
from recsys_moe.train.processes import spinning


def main() -> None:
    options = parse_options()
    clock, command_line = Clock(options), cli.app

    def watched() -> None:
        spinning.spin_long_if_alone()  # as fit, which would come too late: this loads torch
        add_callback(clock)
        command_line()

    # main() sets the process up first, before anything loads torch; so must we.
    cli.app = watched  # type: ignore[assignment]
    settings = {"--data": options.data, "--out": options.out, "--experts": options.experts}
    words = [str(word) for pair in settings.items() for word in pair]
    size = ["--batch-size", str(options.batch_size), "--max-epochs", "1", "--overwrite"]
    sys.argv = ["recsys-moe", "fit", "--config", "movielens_1m", *words, *size]
    cli.main()


def add_callback(clock: Clock) -> None:
    """Give every Trainer one more callback: fit() takes none."""
    import lightning
    from lightning.pytorch.callbacks import LambdaCallback

    create = lightning.Trainer.__init__

    def watched(self: lightning.Trainer, *, callbacks: list[Any], **settings: Any) -> None:
        ticking = LambdaCallback(on_train_batch_start=clock.tick)
        create(self, callbacks=[*callbacks, ticking], **settings)

    lightning.Trainer.__init__ = watched


if __name__ == "__main__":
    main()
