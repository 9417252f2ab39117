"""Train a mixture of CNN experts on two digits over each other, or on house numbers.

    python -m examples.images.train --data DIR --router moesart --k 4 --seed 0

DIR holds the official files; the command downloads nothing. The same command resumes a stopped run,
and prints the result of a finished one. See research/examples.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L

from examples.common.figures import draw_curves
from examples.common.outputs import write_json
from examples.common.runs import (
    Data,
    add_router_options,
    add_run_options,
    command,
    finished,
    fit,
    guarded,
    losses_by_epoch,
    router_settings,
)
from examples.images.data import Batches, Splits
from examples.images.module import EVAL_ROWS, ImageModule
from examples.images.settings import PRECISIONS, PROTOCOLS, Settings, settings_for
from recsys_moe.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    return guarded(lambda: _main(parser().parse_args(argv)))


def _main(options: argparse.Namespace) -> None:
    settings = settings_of(options, {"router": options.router}, options.seed)
    out = options.out or Path("runs/images") / run_name(settings)
    splits = PROTOCOLS[settings.dataset].load(options.data, settings.tasks)
    result = train(settings, splits, out, device=options.device)
    draw_curves(out, "curves", {settings.router: [losses_by_epoch(out)]})
    print(json.dumps(result) if options.json else in_words(result, out))


def train(settings: Settings, splits: Splits, out: Path, device: str = "auto") -> dict[str, Any]:
    """Train or resume the run at `out`; its result on the test split.

    Raises ConfigError for a folder of other settings, RunError where the loss is not finite.
    """
    if (there := finished(settings, out)) is not None:
        return there
    L.seed_everything(settings.seed, verbose=False)
    module = ImageModule(settings, splits.train.shape)
    data = Data(splits, settings, Batches, EVAL_ROWS)
    found = fit(settings, module, data, out, device=device, precision=settings.precision)
    own = {"k": module.model.chosen.get("k"), "parameters": module.model.sizes()}
    result = {**dataclasses.asdict(settings), **own, **found}
    write_json(out / "result.json", result)
    return result


def run_name(settings: Settings) -> str:
    """Default folder name."""
    return (
        f"{settings.dataset}-{settings.router.replace(':', '.')}-k{settings.k}-seed{settings.seed}"
    )


def in_words(result: dict[str, Any], out: Path) -> str:
    """The result as text."""
    test = result["test"]
    accuracy = ", ".join(f"{100 * v:.2f}%" for k, v in test.items() if k.startswith("accuracy"))
    return (
        f"{result['router']} on {result['dataset']}: test loss {test['loss']:.4f}, accuracy "
        f"{accuracy}; epoch {result['best_epoch']:.0f} of {result['epochs_trained']} is the best, "
        f"{result['seconds_per_epoch']:.1f} s each\n{out}"
    )


def parser() -> argparse.ArgumentParser:
    """The options of a run."""
    parser = command("examples.images.train", __doc__)
    parser.add_argument("--router", default="moesart", help="of `recsys-moe routers`")
    add_options(parser)
    parser.add_argument("--seed", type=int, default=0, help="weights, batches and draws")
    parser.add_argument("--out", type=Path, help="folder to create or to resume")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of a run and of a study. The default is the paper's protocol."""
    add_run_options(parser)
    parser.add_argument("--dataset", default="multi_mnist", choices=PROTOCOLS)
    parser.add_argument("--tasks", type=int, help="1: predict only the digit at the top left")
    parser.add_argument("--precision", choices=PRECISIONS, help="of products and convolutions")
    add_router_options(parser, "row and task")


def settings_of(options: argparse.Namespace, contender: Mapping[str, Any], seed: int) -> Settings:
    """The protocol, changed by the contender, then by the options. Raises ConfigError, also for an
    option that the study varies itself."""
    names = ["k", "experts", "tasks", "epochs", "patience", "batch_size", "lr", "precision"]
    names.append("trimmed_lasso")
    typed = {name: value for name in names if (value := getattr(options, name)) is not None}
    own = {name: value for name, value in contender.items() if name != "router"}
    fixed, more = own.get("router_settings", {}), router_settings(options.set)
    for of, asked in ((own, typed), (fixed, more)):
        for name in of.keys() & asked.keys():
            raise ConfigError(
                f"{name} must not be set, as this study varies it, got {asked[name]}; omit it"
            )
    chosen = {**fixed, **more}
    changes = {**own, **typed, "router_settings": chosen, "seed": seed}
    return settings_for(options.dataset, contender["router"], **changes)


if __name__ == "__main__":
    sys.exit(main())
