"""Routers times seeds on images, one run after another: a study of the MOESART paper.

    python -m examples.images.compare                                   # the recipes
    python -m examples.images.compare table1 --data DIR --out OUT --seeds 3

The same command resumes a stopped study and repeats no finished run. OUT holds the runs,
results.csv with a row per finished run, table.md with the paper's values, and figure.*.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.common.runs import command, guarded
from examples.common.tables import check_failures, draw_runs, finished_runs, report, run_study
from examples.images.data import Splits
from examples.images.inference import check, distances, draw_inference, losses
from examples.images.module import ImageModule
from examples.images.recipes import RECIPES, Recipe, find_recipe
from examples.images.settings import PROTOCOLS, Settings
from examples.images.table import row, table
from examples.images.train import add_options, settings_of, train
from recsys_moe.errors import ConfigError


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
        ImageModule(settings, splits.train.shape)  # refuses an unsupported router
    print(f"{recipe.makes}, on {options.dataset}. The paper: {recipe.reading}", file=sys.stderr)
    failures = run_study(
        asked, lambda own, out: train(own, splits, out, options.device), row, options.out
    )
    if rows := [row(run) for run in finished_runs(options.out)]:
        draw(recipe, asked, splits, options.out)
        report(rows, table(rows, labels), options.out, as_json=options.json)
    check_failures(failures, len(asked))


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


def draw(recipe: Recipe, asked: Sequence[tuple[Path, Settings]], splits: Splits, out: Path) -> None:
    """OUT/figure.*: of all finished runs their curves, or of the first seed's both inferences."""
    done = [(folder, settings) for folder, settings in asked if (folder / "result.json").exists()]
    if recipe.figure == "curves" or not done:
        return draw_runs(out)
    first = [(folder, s) for folder, s in done if s.seed == min(s.seed for _, s in done)]
    by_router = {
        folder.name.rpartition("-seed")[0]: losses(s, folder, splits.test) for folder, s in first
    }
    draw_inference(out, "figure", by_router, distances(by_router))


def parser() -> argparse.ArgumentParser:
    """The options of a study: those of a run over the recipe's, for every run."""
    parser = command("examples.images.compare", __doc__)
    parser.add_argument("recipe", help=f"one of {', '.join(RECIPES)}")
    add_options(parser)
    parser.set_defaults(dataset=None)
    parser.add_argument("--routers", help="a,b,c: contenders of the recipe, or routers")
    parser.add_argument("--seeds", type=int, help="runs per contender")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--out", type=Path, required=True, help="folder to create or to resume")
    return parser


if __name__ == "__main__":
    sys.exit(main())
