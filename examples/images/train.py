"""Train a mixture of CNN experts on two digits over each other, or on house numbers.

    python -m examples.images.train --data DIR --router moesart --k 4 --seed 0

DIR holds the official files; nothing is downloaded. Starting the same command again goes on where
it stopped, and prints the result where it is finished. docs/examples.md has the rest.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import logging
import math
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, RichProgressBar

from examples.images.data import Splits
from examples.images.figures import draw_curves
from examples.images.module import ImageData, ImageModule, Record
from examples.images.outputs import write_json
from examples.images.settings import PROTOCOLS, Settings, settings_for
from recsys_moe.errors import ConfigError, Interrupted, RunError, UserError


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
    """Train, or go on with, the run at `out`; its result on the test split.

    Raises ConfigError for a folder of other settings, RunError where the loss is not finite.
    """
    if (out / "result.json").exists() and _same(settings, out):
        return dict(json.loads((out / "result.json").read_text()))
    last = out / "checkpoints" / "last.ckpt"
    L.seed_everything(settings.seed, verbose=False)
    module, data = ImageModule(settings, splits.train.shape), ImageData(splits, settings)
    if not _same(settings, out):
        write_json(out / "settings.json", dataclasses.asdict(settings))
    trainer, record, best = _trainer(settings, out, device)
    with warnings.catch_warnings():
        # Lightning's remarks: on the folder that a run goes on in, on metrics of so few steps.
        warnings.filterwarnings("ignore", message=".*(Checkpoint directory|logging interval).*")
        trainer.fit(module, data, ckpt_path=last if last.exists() else None)
    score = best.best_model_score
    if not best.best_model_path or score is None or not math.isfinite(score):
        raise RunError(f"the loss is not finite in {out}, got nan or inf; lower --lr")
    rows = list(record.rows)  # the best checkpoint brings its own
    (test,) = trainer.test(module, data, ckpt_path=best.best_model_path, verbose=False)
    result = _result(settings, module, rows, test)
    write_json(out / "result.json", result)
    return result


def _trainer(
    settings: Settings, out: Path, device: str
) -> tuple[L.Trainer, Record, ModelCheckpoint]:
    terminal = sys.stderr.isatty()
    record = Record(out / "metrics.csv", lines=not terminal)
    best = ModelCheckpoint(
        out / "checkpoints",
        "best",
        monitor="val/loss",
        save_last=True,
        enable_version_counter=False,
    )
    bar = [RichProgressBar(console_kwargs={"stderr": True})] if terminal else []
    trainer = L.Trainer(
        max_epochs=settings.epochs,
        accelerator=device,
        devices=1,
        callbacks=[record, best, EarlyStopping("val/loss", patience=settings.patience), *bar],
        logger=False,
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=1,
        enable_progress_bar=terminal,
        enable_model_summary=False,
        deterministic="warn",
    )
    return trainer, record, best


def _result(
    settings: Settings, module: ImageModule, rows: list[dict[str, float]], test: Any
) -> dict[str, Any]:
    """What a run found, as plain values."""
    best = min(rows, key=lambda row: row["val/loss"])
    seconds = sorted(row["seconds"] for row in rows)
    return {
        **dataclasses.asdict(settings),
        "k": module.model.chosen.get("k"),
        "test": _short(test, "test/"),
        "val": _short(best, "val/"),
        "best_epoch": best["epoch"],
        "epochs_trained": len(rows),
        "seconds_per_epoch": seconds[len(seconds) // 2],
        "parameters": module.model.sizes(),
        "threads": torch.get_num_threads(),
        "device": str(module.device),
    }


def losses_by_epoch(out: Path) -> list[float]:
    """Validation losses of the run at `out`."""
    rows = csv.DictReader((out / "metrics.csv").read_text().splitlines())
    return [float(row["val/loss"]) for row in rows]


def _short(values: dict[str, float], prefix: str) -> dict[str, float]:
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _same(settings: Settings, out: Path) -> bool:
    """Does `out` hold a run of these settings? Raises ConfigError for one of others."""
    path = out / "settings.json"
    if not path.exists():
        return False
    there, asked = json.loads(path.read_text()), dataclasses.asdict(settings)
    for name, value in asked.items():
        if there.get(name) != value:
            raise ConfigError(
                f"{out} holds a run with {name}={there.get(name)}, got {value}; give another --out"
            )
    return True


def run_name(settings: Settings) -> str:
    """Of the folder where none is given."""
    return (
        f"{settings.dataset}-{settings.router.replace(':', '.')}-k{settings.k}-seed{settings.seed}"
    )


def in_words(result: dict[str, Any], out: Path) -> str:
    """The result for people."""
    test = result["test"]
    accuracy = ", ".join(f"{100 * v:.2f}%" for k, v in test.items() if k.startswith("accuracy"))
    return (
        f"{result['router']} on {result['dataset']}: test loss {test['loss']:.4f}, accuracy "
        f"{accuracy}; epoch {result['best_epoch']:.0f} of {result['epochs_trained']} is the best, "
        f"{result['seconds_per_epoch']:.1f} s each\n{out}"
    )


def parser() -> argparse.ArgumentParser:
    """The options of a run."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.images.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--router", default="moesart", help="of `recsys-moe routers`")
    add_options(parser)
    parser.add_argument("--seed", type=int, default=0, help="weights, batches and draws")
    parser.add_argument("--out", type=Path, help="folder to create or to go on in")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a run and a study of many share. Without an option the paper's protocol holds."""
    parser.add_argument("--data", type=Path, required=True, help="folder of the official files")
    parser.add_argument("--dataset", default="multi_mnist", choices=PROTOCOLS)
    parser.add_argument("--k", type=int, help="experts per row and task")
    parser.add_argument("--experts", type=int)
    parser.add_argument("--tasks", type=int, help="1: name the digit at the top left alone")
    parser.add_argument("--epochs", type=int, help="at most")
    parser.add_argument("--patience", type=int, help="epochs without a better validation loss")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--trimmed-lasso", type=float, help="weight of the penalty")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the router"
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "gpu"])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def settings_of(options: argparse.Namespace, contender: Mapping[str, Any], seed: int) -> Settings:
    """The protocol, over it the contender, over it the options. Raises ConfigError."""
    names = ("k", "experts", "tasks", "epochs", "patience", "batch_size", "lr", "trimmed_lasso")
    typed = {name: value for name in names if (value := getattr(options, name)) is not None}
    own = {name: value for name, value in contender.items() if name != "router"}
    chosen = {**own.get("router_settings", {}), **router_settings(options.set)}
    changes = {**own, **typed, "router_settings": chosen, "seed": seed}
    return settings_for(options.dataset, contender["router"], **changes)


def router_settings(words: Sequence[str]) -> dict[str, Any]:
    """`temperature=1` as a setting. Raises ConfigError."""
    for word in words:
        if "=" not in word:
            raise ConfigError(f"--set must be KEY=VALUE, got {word}")
    return {key: yaml.safe_load(value) for key, _, value in (w.partition("=") for w in words)}


def guarded(run: Callable[[], None]) -> int:
    """Run, with errors and signals in one line on stderr; the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.. is deprecated")
    try:
        run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _stop(number: int, frame: object) -> None:
    name = signal.Signals(number).name
    raise Interrupted(f"stopped by {name}; the same command goes on after the last epoch", number)


if __name__ == "__main__":
    sys.exit(main())
