"""Routers times seeds on images, one run after another: a study of the MOESART paper.

    python -m examples.images.compare                                   # the recipes
    python -m examples.images.compare table1 --data DIR --out OUT --seeds 3

Starting it again repeats no finished run and goes on with the one that was stopped. OUT holds the
runs, results.csv with a row per finished one, table.md beside the paper's figures, and figure.*.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.common.figures import draw_curves
from examples.common.runs import guarded, losses_by_epoch
from examples.common.tables import finished_runs
from examples.images.data import Splits
from examples.images.figures import draw_inference
from examples.images.inference import check, distances, losses
from examples.images.module import ImageModule
from examples.images.recipes import RECIPES, Recipe, find_recipe
from examples.images.settings import PROTOCOLS, Settings
from examples.images.table import write_results, write_table
from examples.images.train import add_options, settings_of, train
from recsys_moe.errors import ConfigError, RunError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words:
        print("\n".join(f"{name:18} {recipe.makes}" for name, recipe in RECIPES.items()))
        return 0
    return guarded(lambda: _main(parser().parse_args(words)))


def _main(options: argparse.Namespace) -> None:
    recipe = find_recipe(options.recipe)
    options.dataset = options.dataset or recipe.dataset
    labels = options.routers.split(",") if options.routers else list(recipe.contenders)
    asked = planned(recipe, labels, options)
    splits = PROTOCOLS[options.dataset].load(options.data, asked[0][1].tasks)
    for _, settings in asked[: len(labels)]:
        ImageModule(settings, splits.train.shape)  # a router that cannot be ends here
    print(f"{recipe.makes}, on {options.dataset}. The paper: {recipe.reading}", file=sys.stderr)
    failures = run_all(asked, splits, options)
    rows = write_results(options.out)
    if rows:
        draw(recipe, asked, splits, options.out)
        text = write_table(options.out, rows, labels)
        print(json.dumps(rows) if options.json else text, end="\n" if options.json else "")
    if failures:
        raise RunError(f"{len(failures)} of {len(asked)} runs failed: {'; '.join(failures)}")


def planned(
    recipe: Recipe, labels: Sequence[str], options: argparse.Namespace
) -> list[tuple[Path, Settings]]:
    """The folder and settings of each run: all contenders of the first seed, then of the next.

    What is typed stands over the recipe. Raises ConfigError before anything is trained.
    """
    count = recipe.seeds if options.seeds is None else options.seeds
    if count < 1:
        raise ConfigError(f"--seeds must be >= 1, got {count}")
    runs = []
    for seed in range(options.seed, options.seed + count):
        for label in labels:
            contender = {**recipe.common, **recipe.contender(label)}
            if recipe.figure == "inference":
                check(contender["router"])
            settings = settings_of(options, contender, seed)
            runs.append((options.out / "runs" / f"{label}-seed{seed}", settings))
    return runs


def run_all(
    asked: Sequence[tuple[Path, Settings]], splits: Splits, options: argparse.Namespace
) -> list[str]:
    """Train what is not finished; what failed, in words. Every finished run is in results.csv."""
    failures = []
    for number, (folder, settings) in enumerate(asked, 1):
        print(f"run {number} of {len(asked)}: {folder.name}", file=sys.stderr, flush=True)
        try:
            train(settings, splits, folder, options.device)
        except RunError as error:
            failures.append(str(error))
        write_results(options.out)
    return failures


def draw(recipe: Recipe, asked: Sequence[tuple[Path, Settings]], splits: Splits, out: Path) -> None:
    """OUT/figure.*: of all finished runs their curves, or of the first seed's both inferences."""
    done = [(folder, settings) for folder, settings in asked if (folder / "result.json").exists()]
    if recipe.figure == "curves" or not done:
        return draw_curves(out, "figure", curves(out))
    first = [(folder, s) for folder, s in done if s.seed == min(s.seed for _, s in done)]
    by_router = {
        folder.name.rpartition("-seed")[0]: losses(s, folder, splits.test) for folder, s in first
    }
    draw_inference(out, "figure", by_router, distances(by_router))


def curves(out: Path) -> dict[str, list[list[float]]]:
    """Validation losses by epoch, per contender and seed."""
    found: dict[str, list[list[float]]] = {}
    for run in finished_runs(out):
        folder = out / "runs" / f"{run['label']}-seed{run['seed']}"
        found.setdefault(run["label"], []).append(losses_by_epoch(folder))
    return found


def parser() -> argparse.ArgumentParser:
    """The options of a study: those of a run over the recipe's, for every run."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.images.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", help=f"one of {', '.join(RECIPES)}")
    add_options(parser)
    parser.set_defaults(dataset=None)
    parser.add_argument("--routers", help="a,b,c: contenders of the recipe, or routers")
    parser.add_argument("--seeds", type=int, help="runs per contender")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--out", type=Path, required=True, help="folder to create or to go on in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
