"""`recsys-moe paper`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recsys_moe.cli.training import MaxEpochs, Sets, fit_flags, typed_sections

if TYPE_CHECKING:
    from recsys_moe.lab.paper.request import PaperRequest

logger = logging.getLogger("recsys_moe.paper")


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
    from recsys_moe.lab.paper.recipes import find_recipe
    from recsys_moe.lab.paper.request import PaperRequest

    if recipe is None:
        return _list_recipes(as_json)
    request = PaperRequest(
        name=recipe,
        recipe=find_recipe(recipe),
        data=data,
        out=out,
        seeds=seeds,
        seed=seed,
        settings=settings,
        trials=trials,
        typed=typed_sections(fit_flags(max_epochs=max_epochs), set_ or []),
        jobs=jobs,
    )
    _run(request, as_json)


def _list_recipes(as_json: bool) -> None:
    from recsys_moe.lab.paper.recipes import recipes

    shipped = recipes()
    if as_json:
        print(json.dumps({name: r.model_dump(by_alias=True) for name, r in shipped.items()}))
        return
    for name, entry in shipped.items():
        print(f"{name:20} {entry.makes}")


def _run(request: PaperRequest, as_json: bool) -> None:
    out = request.check()
    logger.info("loading torch ...")
    from recsys_moe.lab.paper.study import run_paper

    logger.info("%s", request.recipe.reading)
    comparison = run_paper(request)
    if comparison is None:
        figures = sorted(str(path) for path in out.glob("figure*.json"))
        words = f"{request.recipe.makes}: {', '.join(figures)}"
        print(json.dumps({"figures": figures}) if as_json else words)
        return
    name = "results.json" if as_json else "table.md"
    print((out / name).read_text(encoding="utf-8"), end="")
    comparison.check()
