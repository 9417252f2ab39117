"""Resumable training runs, and the options of the commands."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import logging
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, RichProgressBar

from examples.common.outputs import write_csv, write_json
from recsys_moe.errors import ConfigError, Interrupted, RunError, UserError
from recsys_moe.routers import find_router


def finished(settings: Any, out: Path) -> dict[str, Any] | None:
    """The result of a finished run at `out`. Raises ConfigError for one of other settings."""
    if not (out / "result.json").exists() or not _same(settings, out):
        return None
    return dict(json.loads((out / "result.json").read_text()))


def fit(
    settings: Any,
    module: L.LightningModule,
    data: L.LightningDataModule,
    out: Path,
    **machine: Any,
) -> dict[str, Any]:
    """Train or resume the run at `out` up to `settings.epochs`; its result.

    `machine`: `device` and, if not single, `precision`, in Lightning's words. The epoch of the
    least val/loss is tested; the module has its weights afterwards. Raises ConfigError for a folder
    of other settings, RunError where the loss is not finite.
    """
    last = out / "checkpoints" / "last.ckpt"
    check_device(machine["device"])
    if not _same(settings, out):
        write_json(out / "settings.json", dataclasses.asdict(settings))
    trainer, record, best = _trainer(settings, out, **machine)
    with warnings.catch_warnings():
        # Lightning's warnings about a resumed folder and about few steps.
        warnings.filterwarnings("ignore", message=".*(Checkpoint directory|logging interval).*")
        trainer.fit(module, data, ckpt_path=last if last.exists() else None)
    score = best.best_model_score
    if not best.best_model_path or score is None or not math.isfinite(score):
        raise RunError(f"the loss is not finite in {out}, got nan or inf; lower --lr")
    rows = list(record.rows)  # the best checkpoint brings its own
    (test,) = trainer.test(module, data, ckpt_path=best.best_model_path, verbose=False)
    return _found(module, rows, dict(test))


def check_device(name: str) -> None:
    """Raise ConfigError for a missing GPU."""
    if name == "gpu" and not torch.accelerator.is_available():
        raise ConfigError("--device gpu needs a GPU that torch sees, got none; use auto")


def _trainer(
    settings: Any, out: Path, *, device: str, precision: Any = "32-true"
) -> tuple[L.Trainer, Record, ModelCheckpoint]:
    terminal = sys.stderr.isatty()
    record = Record(out / "metrics.csv", lines=not terminal)
    folder = out / "checkpoints"
    best = ModelCheckpoint(folder, "best", monitor="val/loss", enable_version_counter=False)
    # Its own: `save_last` of `best` saves where that does, in epochs that are better alone.
    last = ModelCheckpoint(folder, "last", enable_version_counter=False)
    patience = Patience("val/loss", patience=settings.patience)
    bar = [RichProgressBar(console_kwargs={"stderr": True})] if terminal else []
    trainer = L.Trainer(
        max_epochs=settings.epochs,
        accelerator=device,
        devices=1,
        precision=precision,
        callbacks=[record, patience, best, last, *bar],
        logger=False,
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=1,
        enable_progress_bar=terminal,
        enable_model_summary=False,
        deterministic="warn",
    )
    return trainer, record, best


def _found(
    module: L.LightningModule, rows: list[dict[str, float]], test: dict[str, float]
) -> dict[str, Any]:
    best = min(rows, key=lambda row: row["val/loss"])
    seconds = sorted(row["seconds"] for row in rows)
    return {
        "test": _short(test, "test/"),
        "val": _short(best, "val/"),
        "best_epoch": best["epoch"],
        "epochs_trained": len(rows),
        "seconds_per_epoch": seconds[len(seconds) // 2],
        "threads": torch.get_num_threads(),
        "device": str(module.device),
    }


def _short(values: dict[str, float], prefix: str) -> dict[str, float]:
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _same(settings: Any, out: Path) -> bool:
    """Whether `out` holds a run of these settings. Raises ConfigError for other settings."""
    path = out / "settings.json"
    if not path.exists():
        return False
    # A run from before a setting was there had what is its default.
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    there, asked = {**defaults, **json.loads(path.read_text())}, dataclasses.asdict(settings)
    for name, value in asked.items():
        if there[name] != value:
            raise ConfigError(
                f"{out} holds a run with {name}={there[name]}, got {value}; use another --out"
            )
    return True


def losses_by_epoch(out: Path) -> list[float]:
    """Validation losses of the run at `out`."""
    rows = csv.DictReader((out / "metrics.csv").read_text().splitlines())
    return [float(row["val/loss"]) for row in rows]


class Patience(EarlyStopping):
    """Early stopping that stays stopped after a resume, which Lightning's does not."""

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        waited = checkpoint["callbacks"][self.state_key]["wait_count"]
        trainer.should_stop = waited >= self.patience


class Record(L.Callback):
    """A row per finished epoch, in metrics.csv and in the checkpoint: it outlives a stop."""

    def __init__(self, path: Path, *, lines: bool) -> None:
        """`lines`: say each epoch on stderr, where no progress bar does."""
        self.path, self.lines = path, lines
        self.rows: list[dict[str, float]] = []
        self.started = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = list(state_dict["rows"])

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.started = time.perf_counter()

    def on_validation_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        own = {name: value for name, value in values.items() if name.startswith("val/")}
        seconds = time.perf_counter() - self.started
        self.rows.append({"epoch": trainer.current_epoch + 1, "seconds": round(seconds, 2), **own})
        write_csv(self.path, self.rows)
        if self.lines:
            words = ", ".join(f"{name} {value:.4g}" for name, value in self.rows[-1].items())
            print(words, file=sys.stderr, flush=True)


def chosen_router(name: str, k: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Name and settings of a router, with `k` where it has one. Raises ConfigError."""
    try:
        has_k = "k" in find_router(name).Config.model_fields
    except ValueError as error:
        raise ConfigError(str(error).replace("model.router.name", "--router")) from None
    return {"name": name, **({"k": k} if has_k else {}), **settings}


def router_settings(words: Sequence[str]) -> dict[str, Any]:
    """`temperature=1` as a setting. Raises ConfigError."""
    for word in words:
        if "=" not in word:
            raise ConfigError(f"--set must be KEY=VALUE, got {word}")
    return {key: _value(key, value) for key, _, value in (w.partition("=") for w in words)}


def _value(key: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"--set {key}={text} is not YAML after the =: {reason}") from None


def command(module: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m module`."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Options of any training run."""
    parser.add_argument("--data", type=Path, required=True, help="folder of the data files")
    parser.add_argument("--epochs", type=int, help="at most")
    parser.add_argument("--patience", type=int, help="epochs without a better validation loss")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "gpu"])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_router_options(parser: argparse.ArgumentParser, per: str) -> None:
    """Options of the router. `per`: what visits `--k` experts."""
    parser.add_argument("--k", type=int, help=f"experts per {per}")
    parser.add_argument("--experts", type=int)
    parser.add_argument("--trimmed-lasso", type=float, help="weight of the penalty")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the router"
    )


def check_settings(settings: Any, least: Mapping[str, float]) -> None:
    """Raise ConfigError for a number below its least, or a bad learning rate."""
    for name, smallest in least.items():
        value = getattr(settings, name, None)
        if value is not None and value < smallest:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} must be >= {smallest}, got {value}")
    if not 0 < settings.lr < float("inf"):
        raise ConfigError(f"--lr must be > 0, got {settings.lr}")


class Data(L.LightningDataModule):
    """Splits on the trainer's device, in batches; each epoch is shuffled by seed and number."""

    def __init__(self, splits: Any, settings: Any, batches: Callable[..., Any], size: int) -> None:
        """`batches(rows, size, seed)` makes batches; `size`: rows of an evaluation batch."""
        super().__init__()
        self.splits, self.settings, self.batches, self.size = splits, settings, batches, size
        self.placed: dict[str, Any] = {}

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        seed = [self.settings.seed, self.trainer.current_epoch]
        return self.batches(self._rows("train"), self.settings.batch_size, seed)

    def val_dataloader(self) -> Any:
        return self.batches(self._rows("val"), self.size)

    def test_dataloader(self) -> Any:
        return self.batches(self._rows("test"), self.size)

    def _rows(self, split: str) -> Any:
        if split not in self.placed:
            assert self.trainer is not None
            rows = getattr(self.splits, split)
            self.placed[split] = rows.to(self.trainer.strategy.root_device)
        return self.placed[split]


def guarded(run: Callable[[], None]) -> int:
    """Run, with errors and signals in one line on stderr; the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.. is deprecated")
    try:
        run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def stop(number: int, frame: object) -> None:
    """Signal handler: raises Interrupted."""
    name = signal.Signals(number).name
    raise Interrupted(f"stopped by {name}; the same command resumes after the last epoch", number)
