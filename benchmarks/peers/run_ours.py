"""`recsys-moe fit` as users meet it: through the command line, whole loop, run folder and all."""

from __future__ import annotations

import sys
from pathlib import Path

from clock import Clock, read_options

from recsys_moe import cli
from recsys_moe.cli import commands

sys.path.append(str(Path(__file__).resolve().parents[1]))


def main() -> None:
    options = read_options()
    clock, command_line = Clock(options), commands.invoke

    def watched() -> None:
        from lightning.pytorch.callbacks import LambdaCallback
        from watching import watched_by

        with watched_by(LambdaCallback(on_train_batch_start=clock.tick)):
            command_line()

    # main() sets the process up first, before anything loads torch; so must we.
    commands.invoke = watched  # type: ignore[assignment]
    settings = {"--data": options.data, "--out": options.out, "--experts": options.experts}
    words = [str(word) for pair in settings.items() for word in pair]
    size = ["--batch-size", str(options.batch_size), "--max-epochs", "1", "--overwrite"]
    size += [word for setting in options.set for word in ("--set", setting)]
    sys.argv = ["recsys-moe", "fit", "--config", "movielens_1m_paper", *words, *size]
    cli.main()


if __name__ == "__main__":
    main()
