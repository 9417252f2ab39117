"""Train a teacher: a small BERT from scratch, or a checkpoint fine-tuned on a task.

    python -m examples.moebert.teacher --data DIR --out OUT                      # titles, scratch
    python -m examples.moebert.teacher --task rte --data RTE --from BERT --out OUT

OUT becomes a checkpoint folder in Hugging Face's layout. The same command resumes a stopped run.
See research/examples.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L

from examples.common.outputs import write_json
from examples.common.runs import Data, add_run_options, command, finished, fit, guarded
from examples.moebert import checkpoint
from examples.moebert.encoder import Encoder, Sizes
from examples.moebert.module import EVAL_ROWS, TextModule
from examples.moebert.rows import Batches
from examples.moebert.settings import TASKS, Teacher
from examples.moebert.settings import teacher as teacher_settings
from recsys_moe.errors import ConfigError

SCRATCH = {"epochs": 12, "lr": 1e-3}
"""Defaults of a teacher trained from scratch."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    return guarded(lambda: _main(parser().parse_args(argv)))


def _main(options: argparse.Namespace) -> None:
    result = teach(settings_of(options), options.data, options.out, device=options.device)
    test = {name: round(value, 4) for name, value in result["test"].items()}
    words = f"teacher on {result['task']}: {test}\n{options.out}"
    print(json.dumps(result) if options.json else words)


def settings_of(options: argparse.Namespace) -> Teacher:
    """What the options ask for. Raises ConfigError."""
    names = ("epochs", "patience", "lr", "batch_size", "weight_decay", "seed", "width", "layers")
    own = {name: getattr(options, name) for name in names}
    if options.start is None:
        own |= {name: value for name, value in SCRATCH.items() if own[name] is None}
    else:
        _must_hold_weights(options.start)
        own |= {"start": str(options.start), "start_sha256": checkpoint.sha256(options.start)}
    return teacher_settings(options.task, **own)


def _must_hold_weights(start: Path) -> None:
    if not (start / checkpoint.WEIGHTS).exists():
        raise ConfigError(f"--from {start} has no {checkpoint.WEIGHTS}; name a checkpoint folder")


def teach(settings: Teacher, data: Path, out: Path, *, device: str = "auto") -> dict[str, Any]:
    """Train or resume a teacher at `out`; its result. Raises ConfigError and DataError."""
    if (there := finished(settings, out)) is not None:
        return there
    task = TASKS[settings.task]
    L.seed_everything(settings.seed, verbose=False)
    if settings.start:
        encoder, words = checkpoint.load(Path(settings.start), task.classes, fresh_head=True)
        splits, _ = task.load(data, words)
    elif settings.task != "titles":
        raise ConfigError(f"--from must name a checkpoint for --task {settings.task}, got none")
    else:
        splits, words = task.load(data, None)
        encoder = Encoder(small_sizes(len(words.pieces), settings))
    module = TextModule(settings, encoder)
    found = fit(settings, module, Data(splits, settings, Batches, EVAL_ROWS), out, device=device)
    checkpoint.save(out, encoder, words)
    sizes = {"parameters": sum(p.numel() for p in encoder.parameters())}
    result = {**dataclasses.asdict(settings), **sizes, **found}
    write_json(out / "result.json", result)
    return result


def small_sizes(vocabulary: int, settings: Teacher) -> Sizes:
    """Of a teacher from scratch."""
    task = TASKS[settings.task]
    return Sizes(
        vocabulary,
        task.classes,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        intermediate_size=4 * settings.width,
        max_position_embeddings=task.length,
    )


def parser() -> argparse.ArgumentParser:
    """The options of a teacher's run."""
    parser = command("examples.moebert.teacher", __doc__)
    add_options(parser)
    parser.add_argument("--from", dest="start", type=Path, help="checkpoint to fine-tune")
    parser.add_argument("--width", type=int, default=128, help="from scratch: hidden size")
    parser.add_argument("--layers", type=int, default=4, help="from scratch")
    parser.add_argument("--out", type=Path, required=True, help="folder to create or to resume")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of all commands. The default is the task's."""
    add_run_options(parser)
    parser.add_argument("--task", default="titles", choices=TASKS)
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--seed", type=int, default=0, help="weights, batches, dropout and draws")


if __name__ == "__main__":
    sys.exit(main())
