"""`recsys-moe config show|explain|schema|diff` and `recsys-moe routers`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from recsys_moe.cli.configuration import resolve, typed_sections
from recsys_moe.cli.options import ConfigFile, Data, Json, RouterName, Sets, opt

Side = Annotated[str, typer.Argument(help="YAML file, shipped configuration, run or model folder.")]

app = typer.Typer(help="Show and compare configurations.", no_args_is_help=True)


@app.command()
def show(
    config: ConfigFile = None,
    router: RouterName = None,
    set_: Sets = None,
    data: Annotated[Path | None, opt("Prepared folder: show what `fit` uses for it.")] = None,
) -> None:
    """Print the resolved configuration as commented YAML for `fit --config`."""
    print(resolve(config, router, {}, set_ or [], data=data).to_yaml(comments=True), end="")


@app.command()
def explain(
    data: Data,
    router: RouterName = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """List the settings that `fit` without --config chooses for the data, and why."""
    from recsys_moe.config.auto import with_choices
    from recsys_moe.config.settings import parse_config, select_router
    from recsys_moe.schema import Schema

    given = typed_sections({}, set_ or [])
    given = select_router(given, router)[0] if router else given
    resolved, made = with_choices(given, Schema.load(data), everything=True)
    parse_config(resolved)
    if as_json:
        print(json.dumps([one._asdict() for one in made]))
    else:
        print("\n".join(map(str, made)))


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration."""
    from recsys_moe.config.settings import Config

    print(json.dumps(Config.model_json_schema(), indent=2))


@app.command()
def diff(
    a: Side,
    b: Side,
    as_json: Json = False,
    exit_code: Annotated[bool, opt("Exit with code 1 if they differ.", "--exit-code")] = False,
) -> None:
    """Print the settings that differ between two configurations."""
    from recsys_moe.config.diff import differences, read_resolved

    differing = differences(read_resolved(a), read_resolved(b))
    if as_json:
        print(json.dumps({"equal": not differing, "differences": differing}))
    else:
        _print_differences(differing)
    if differing and exit_code:
        raise typer.Exit(1)


def _print_differences(differing: dict[str, Any]) -> None:
    """In colour on a terminal."""
    from rich.console import Console
    from rich.text import Text

    from recsys_moe.config.diff import shown

    console = Console(highlight=False, soft_wrap=True)
    for key, value in differing.items():
        sides = (shown(value, "a"), "red"), " -> ", (shown(value, "b"), "green")
        console.print(Text.assemble((key, "bold"), ": ", *sides))
    if not differing:
        print("no differences")


def routers(
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """List the routers.

    Shows experts per example and parameters per task, at the configured sizes.
    """
    from recsys_moe.config.overview import overviews

    overview_of = overviews(resolve(config, None, {}, set_ or []))
    if as_json:
        print(json.dumps({name: asdict(router) for name, router in overview_of.items()}))
        return
    row = f"{{:{max(map(len, overview_of))}}} {{:>15}} {{:>15}} {{:>10}}  {{}}".format
    print(row("router", "in training", "at inference", "parameters", "summary"))
    for name, router in overview_of.items():
        if router.problem:
            print(row(name, "-", "-", "-", router.problem))
        else:
            sizes = router.training, router.inference, router.parameters
            print(row(name, *sizes, router.summary))
