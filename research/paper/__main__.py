"""`python -m research.paper`: a study of the MOESART paper, its runs, its table, its figure."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from recsys_moe.cli.compare import print_comparison, read_sections
from recsys_moe.cli.configuration import fit_flags, typed_sections
from recsys_moe.cli.options import MaxEpochs, Sets
from recsys_moe.errors import UserError
from recsys_moe.interrupts import listen
from research.paper.recipes import find_recipe, recipes

logger = logging.getLogger("recsys_moe.paper")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def paper(
    recipe: Annotated[
        str | None, typer.Argument(help="Recipe; without one they are listed.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Prepared folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to create or to continue.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs per router and task weights, as `compare`.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; the others follow.")] = 0,
    settings: Annotated[
        Path | None, typer.Option(help="YAML: sections per router, over the recipe's.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials per router, of a tuning study.")
    ] = None,
    max_epochs: MaxEpochs = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time.")] = None,
    set_: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a study of the MOESART paper: its runs, its table, its figure.

    Starting it again repeats no finished run.
    """
    if recipe is None:
        return _list_recipes(as_json)
    asked = find_recipe(recipe)
    data, out = asked.check(data, out, seeds=seeds, settings=settings, trials=trials)
    logger.info("loading torch ...")
    from recsys_moe.schema import Schema
    from research.paper.study import run_paper

    logger.info("%s", asked.reading)
    if asked.routers:
        logger.info("%s", asked.data_in_words(Schema.load(data)))
    comparison = run_paper(
        asked,
        data,
        out,
        seeds=range(seed, seed + (seeds or asked.seeds)),
        trials=trials,
        typed=typed_sections(fit_flags(max_epochs=max_epochs), set_ or []),
        settings=read_sections("--settings", settings),
        jobs=jobs,
    )
    if comparison is not None:
        print_comparison(comparison.results, out, as_json)
        return comparison.check()
    figures = sorted(str(path) for path in out.glob("figure*.json"))
    print(json.dumps({"figures": figures}) if as_json else f"{asked.makes}: {', '.join(figures)}")


def _list_recipes(as_json: bool) -> None:
    shipped = recipes()
    if as_json:
        print(json.dumps({name: r.model_dump(by_alias=True) for name, r in shipped.items()}))
        return
    for name, entry in shipped.items():
        print(f"{name:20} {entry.makes}")


def main() -> None:
    """Ends as `recsys-moe` does: a readable error in one line, and its exit code."""
    listen()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        app(prog_name="python -m research.paper")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
