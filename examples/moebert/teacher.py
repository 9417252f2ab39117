"""Train a teacher: a small BERT from scratch, or a checkpoint fine-tuned on a task.

    python -m examples.moebert.teacher --data DIR --out OUT                      # titles, scratch
    python -m examples.moebert.teacher --task rte --data RTE --from BERT --out OUT

OUT becomes a checkpoint folder in Hugging Face's layout. Starting the same command again goes on
where it stopped. research/examples.md has the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L

from examples.common.outputs import write_json
from examples.common.runs import finished, fit, guarded
from examples.moebert import checkpoint
from examples.moebert.encoder import Encoder, Sizes
from examples.moebert.module import TextData, TextModule
from examples.moebert.settings import TASKS, Teacher, plain
from examples.moebert.settings import teacher as teacher_settings
from recsys_moe.errors import ConfigError

SCRATCH = {"epochs": 12, "lr": 1e-3}
"""Of a teacher that starts from nothing; a student needs less."""


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
    """Train a teacher at `out`, or go on with it; its result. Raises ConfigError and DataError."""
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
    found = fit(settings, module, TextData(splits, settings), out, device=device)
    checkpoint.save(out, encoder, words)
    sizes = {"parameters": sum(p.numel() for p in encoder.parameters())}
    result = {**plain(settings), **sizes, **found}
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
    parser = argparse.ArgumentParser(
        prog="python -m examples.moebert.teacher",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument("--from", dest="start", type=Path, help="checkpoint to fine-tune")
    parser.add_argument("--width", type=int, default=128, help="from scratch: hidden size")
    parser.add_argument("--layers", type=int, default=4, help="from scratch")
    parser.add_argument("--out", type=Path, required=True, help="folder to create or to go on in")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """What all commands share. Without an option the task's default holds."""
    parser.add_argument("--data", type=Path, required=True, help="folder of the task's files")
    parser.add_argument("--task", default="titles", choices=TASKS)
    parser.add_argument("--epochs", type=int, help="at most")
    parser.add_argument("--patience", type=int, help="epochs without a better validation loss")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--seed", type=int, default=0, help="weights, batches, dropout and draws")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "gpu"])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


if __name__ == "__main__":
    sys.exit(main())
