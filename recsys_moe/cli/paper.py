"""`recsys-moe paper`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from recsys_moe.cli.training import Sets

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
    max_epochs: Annotated[int | None, typer.Option(help="Most epochs to train.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time.")] = None,
    set_: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a study of the MOESART paper: its runs, its table, its figure.

    Starting it again repeats no finished run.
    """
    from recsys_moe.errors import ConfigError
    from recsys_moe.lab.paper.recipes import find_recipe, recipes

    if recipe is None:
        found = recipes()
        if as_json:
            print(json.dumps({name: r.model_dump(by_alias=True) for name, r in found.items()}))
        else:
            for name, entry in found.items():
                print(f"{name:20} {entry.makes}")
        return
    chosen = find_recipe(recipe)
    _refuse(chosen.figure, {"--seeds": seeds, "--settings": settings}, {"--trials": trials})
    if out is None:
        raise ConfigError(f"--out is needed: the folder for the runs of {recipe}")
    if chosen.routers and data is None:
        raise ConfigError(f"--data is needed for {chosen.makes}; make it with: {chosen.prepare}")
    logger.info("loading torch ...")
    from recsys_moe.config.files import merge_all, nested, parse_set, read_config_file
    from recsys_moe.lab.paper import study, tuning

    epochs = [] if max_epochs is None else [nested("trainer.max_epochs", max_epochs)]
    typed = merge_all([*map(parse_set, set_ or []), *epochs])
    logger.info("%s", chosen.reading)
    if data is None or not chosen.routers:
        study.draw_bias(out)
        return _say(chosen.makes, out, as_json)
    if chosen.figure == "tuning":
        seeded = merge_all([typed, nested("trainer.seed", seed)])
        tuning.run_tuning(chosen, data, out, trials=trials, typed=seeded, jobs=jobs)
        return _say(chosen.makes, out, as_json)
    number = chosen.seeds if seeds is None else seeds
    comparison = study.run_recipe(
        chosen,
        data,
        out,
        seeds=range(seed, seed + number),
        typed=typed,
        settings=read_config_file(str(settings)) if settings else None,
        jobs=jobs,
    )
    name = "results.json" if as_json else "table.md"
    print((out / name).read_text(encoding="utf-8"), end="")
    comparison.check()


def _refuse(figure: str | None, of_compare: dict[str, object], of_tune: dict[str, object]) -> None:
    """Raise ConfigError for an option that the study has no use for."""
    from recsys_moe.errors import ConfigError

    idle = {"tuning": of_compare, "bias": {**of_compare, **of_tune}}.get(figure or "", of_tune)
    for option, value in idle.items():
        if value is not None:
            raise ConfigError(f"{option} has no meaning for this study, got {value}; leave it out")


def _say(makes: str, out: Path, as_json: bool) -> None:
    figures = sorted(str(path) for path in out.glob("figure*.json"))
    print(json.dumps({"figures": figures}) if as_json else f"{makes}: {', '.join(figures)}")
