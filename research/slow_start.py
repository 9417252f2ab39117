"""Why a router starts slowly: numbers per epoch of gates and experts while `fit` trains.

    python -m research.slow_start --data DIR [--variants NAME ...] [--csv FILE] [--plot FILE]

A variant is a name of VARIANTS, or one of your own, quoted: "NAME=ROUTER [KEY=VALUE ...]", where a
KEY is a setting as for --set, or `try.` and a name of slow_causes.CHANGES. Rows of other variants
in the CSV stay; `--variants` without a name measures nothing and draws what the CSV has.
Not part of `make bench`: a variant takes minutes.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common
from benchmarks.watching import watched_by
from recsys_moe.config.files import merge_all, parse_set, read_config_file
from recsys_moe.config.settings import parse_config, select_router
from recsys_moe.train.fit import fit
from research import slow_plot
from research.slow_causes import Changes
from research.slow_probes import Row
from research.slow_watch import Watcher

VARIANTS = {
    "moesart": "moesart",
    "topk": "topk",
    "softmax": "softmax",
    "temperature 0.2": "moesart model.router.temperature=0.2",
    "embeddings x4": "moesart try.embeddings=4",
    "gate x5": "moesart try.gate=5",
    "gate rate x10": "moesart try.router_lr_multiplier=10",
    "gate gradient x17": "moesart try.gate_gradient=17",
    "eps 1e-10": "moesart optim.eps=1e-10",
    "no dropout": "moesart model.dropout=0",
    "kernels x4": "moesart try.kernels=4",
    "biases 0.1": "moesart try.biases=0.1",
    "equal kernels": "moesart try.alike=1",
    "dense 3 epochs": "moesart try.dense_epochs=3",
    "dense gate gradient": "moesart try.dense_gate=1 model.dispatch=dense",
    "8 of 16 drawn": "moesart model.router.k=8",
    "2 of 4 drawn": "moesart model.num_experts=4",
    "one expert": "softmax model.num_experts=1",
    "shipped": "moesart",
    "temperature .2 to 1": "moesart try.temperature_from=0.2",
    "temperature 5 to 1": "moesart try.temperature_from=5",
    "learned temperature": "moesart try.learned_temperature=10",
    "8 to 2 drawn": "moesart try.k_from=8",
    "16 to 2 drawn": "moesart try.k_from=16",
    "warm-up": "moesart try.warm_up=2",
    "lasso 0 to 0.1": "moesart try.lasso_to=0.1",
    "lasso 0.1": "moesart penalties.trimmed_lasso=0.1",
    "cosine": "moesart optim.schedule=cosine",
    "biases beside the cure": "moesart try.biases=0.1",
    "alike beside the cure": "moesart try.alike=1",
}
DEFAULT = ("moesart", "topk", "softmax")
MIDDLE = 5
"""Epoch at which variants are compared."""


class Variant(NamedTuple):
    name: str
    router: str
    settings: list[str]
    changes: dict[str, float]


def find_variant(text: str) -> Variant:
    """A name of VARIANTS, or `NAME=ROUTER [KEY=VALUE ...]`."""
    name, words = text, VARIANTS.get(text, "").split()
    if not words:
        name, _, rest = text.partition("=")
        words = rest.split()
    if not words:
        sys.exit(f'error: {text!r} is neither "NAME=ROUTER ..." nor of {", ".join(VARIANTS)}')
    own = [word.removeprefix("try.") for word in words[1:] if word.startswith("try.")]
    changes = {key: float(value) for key, value in (word.split("=") for word in own)}
    return Variant(name, words[0], [w for w in words[1:] if not w.startswith("try.")], changes)


def measure(variant: Variant, options: argparse.Namespace) -> list[Row]:
    """Train with `fit`; a row for the start (epoch 0) and each epoch."""
    raw, _ = select_router(read_config_file(options.config), variant.router)
    own = {"trainer": {"max_epochs": options.epochs, "patience": options.epochs}}
    settings = map(parse_set, [*options.set, *variant.settings])
    config = parse_config(merge_all([raw, own, *settings]))
    watcher = Watcher(options)
    changes = Changes(variant.changes)  # named last, they come first
    with tempfile.TemporaryDirectory() as out, watched_by(watcher), watched_by(changes):
        fit(config, options.data, Path(out) / "run")
    return [{"variant": variant.name, **row} for row in watcher.rows]


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            {name: number(text) for name, text in row.items()} for row in csv.DictReader(stream)
        ]


def number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text or math.nan


def plain(row: Row) -> Row:
    """As JSON: it knows neither NaN nor infinity, which one expert's gate has."""
    unknown = [name for name, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
    return row | dict.fromkeys(unknown)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Numbers with five digits: a file that people look at."""
    columns = list(dict.fromkeys(name for row in reversed(rows) for name in row))
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            texts = {n: f"{v:.5g}" if isinstance(v, float) else v for n, v in row.items()}
            writer.writerow({n: "" if text == "nan" else text for n, text in texts.items()})


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    variants = [find_variant(text) for text in options.variants]
    rows = read_rows(options.csv) if options.csv else []
    for variant in variants:
        print(f"{variant.name}: {options.epochs} epochs", file=sys.stderr, flush=True)
        rows = [row for row in rows if row["variant"] != variant.name] + measure(variant, options)
        if options.csv:
            write_rows(options.csv, rows)
    show(rows, options.level)
    if options.plot:
        lines = options.lines or list(dict.fromkeys(row["variant"] for row in rows))
        slow_plot.draw(rows, lines, options.plot)
    wanted = {variant.name for variant in variants}
    common.report("slow_start", {"rows": [plain(r) for r in rows if r["variant"] in wanted]})


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="prepared folder")
    parser.add_argument("--variants", nargs="*", default=DEFAULT, metavar="NAME")
    parser.add_argument("--config", default="movielens_100k_paper")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of all")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="watch each n-th step")
    parser.add_argument("--draws", type=int, default=16, help="draws of the gate's gradient")
    parser.add_argument("--chunks", type=int, default=8, help="batches that it is taken on")
    parser.add_argument("--rows", type=int, default=1024, help="sample of the validation rows")
    parser.add_argument("--csv", type=Path, help="rows are read from here and written here")
    parser.add_argument("--plot", type=Path, help="PNG to draw")
    parser.add_argument("--lines", nargs="+", metavar="NAME", help="variants to draw, else all")
    parser.add_argument("--level", type=float, default=0.5, help="loss that ends the slow start")
    options = parser.parse_args(argv)
    if options.variants and not options.data:
        parser.error("--data is needed to measure variants")
    return options


def show(rows: Sequence[Row], level: float) -> None:
    """A line per variant: how it ends, and how it stood after MIDDLE epochs."""
    names = list(dict.fromkeys(row["variant"] for row in rows))
    found = [summary([row for row in rows if row["variant"] == name], level) for name in names]
    columns = {
        "variant": "{name}",
        "best loss": "{best:.4f}",
        "at": "{at:.0f}",
        f"below {level:g} at": "{below}",
        f"after {MIDDLE}: loss": "{loss:.4f}",
        "exp(H)": "{experts:.1f}",
        "nats a row tells": "{nats:.3f}",
        "snr of gate": "{gate:.3f}",
        "of experts": "{expert:.3f}",
        "cosine of experts": "{cosine:.2f}",
    }
    common.table(columns, found)


def summary(own: Sequence[Row], level: float) -> Row:
    """Of one variant's rows. Gate: the first task's."""
    epochs = [row for row in own if row["epoch"]]
    best = min(epochs, key=lambda row: row["val/loss"])
    middle = epochs[min(MIDDLE, len(epochs)) - 1]
    task = next(key for key in middle if key.startswith("entropy.")).partition(".")[2]
    below = [row["epoch"] for row in epochs if row["val/loss"] < level]
    return {
        "name": best["variant"],
        "best": best["val/loss"],
        "at": best["epoch"],
        "below": f"{below[0]:.0f}" if below else "-",
        "loss": middle["val/loss"],
        "experts": middle[f"effective_experts.{task}"],
        "nats": middle[f"information.{task}"],
        "gate": middle[f"gate_snr.{task}"],
        "expert": middle["expert_snr"],
        "cosine": middle["expert_cosine"],
    }


if __name__ == "__main__":
    main()
