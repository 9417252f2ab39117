"""Steps of finished runs, in turn: what the choices of their routers cost.

    python benchmarks/trained_steps.py RUN RUN ... --data DIR [--rounds N] [--clock wall|cpu]

The first steps of a run do not tell, as its tasks choose apart before they agree. So each step
starts from the averaged weights of the best checkpoint, and a rate of 0 keeps them: forward,
backward and optimizer of training, on batches of the data. The base of the ratios is the first run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import common
import torch

from recsys_moe.artifact.model_folder import artifact_config
from recsys_moe.data.rows import Batch
from recsys_moe.train.averaging import averaged
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from recsys_moe.train.processes.memory import training_process

BATCHES = 16
"""That a run goes through in a circle."""


class TrainedStep:
    """A step that leaves the weights of a run as they are."""

    def __init__(self, run: Path, data: Path) -> None:
        config = artifact_config(run / "model")
        loader = RecDataModule(data, config)
        self.module = RecModule(config, loader.schema.to_json())
        self.module.set_up(loader, bare=True)
        best = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
        self.module.load_state_dict(averaged(best))
        found = loader.train_dataloader()
        self.module._steps_per_epoch = len(found)
        self.optimizer = self.module.train().make_optimizer()
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        batches = itertools.islice(found, BATCHES)
        self.batches: Iterator[Batch] = itertools.cycle([*batches])

    def __call__(self) -> None:
        loss = self.module.training_step(next(self.batches), 1)  # it logs nothing but at 0
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def visited(self) -> float:
        """Experts per example in training so far."""
        return float(self.module._pairs) / self.module._rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=40)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    options = common.parse(parser, argv)
    with training_process():
        steps = {str(run): TrainedStep(run, options.data) for run in options.runs}
        times = common.in_turn(steps, options.rounds, options.clock, settle=True)
    base = str(options.runs[0])
    found = {
        name: {
            "visited": step.visited(),
            "ms": common.spread(times[name]),
            "ratio": common.ratio(times, name, base),
        }
        for name, step in steps.items()
    }
    columns = {"run": "{name}", "experts visited": "{visited:.2f}", "ms": "{ms:.1f}"}
    common.table({**columns, "ratio to the first": "{ratio:.2f}"}, common.named(found))
    common.report("trained_steps", {"runs": found})


if __name__ == "__main__":
    main()
