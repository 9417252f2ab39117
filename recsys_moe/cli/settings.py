"""`recsys-moe config show|schema|diff` and `recsys-moe routers`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from recsys_moe.cli.training import ConfigFile, RouterName, Sets, resolve

Side = Annotated[str, typer.Argument(help="YAML file, shipped config, run or model folder.")]

app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)


@app.command()
def show(config: ConfigFile = None, router: RouterName = None, set_: Sets = None) -> None:
    """Print the resolved configuration, explained, as YAML that `fit --config` accepts."""
    print(resolve(config, router, {}, set_ or []).to_yaml(comments=True), end="")


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    from recsys_moe.config.settings import Config

    print(json.dumps(Config.model_json_schema(), indent=2))


@app.command()
def diff(
    a: Side,
    b: Side,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 where they differ.")
    ] = False,
) -> None:
    """Print the keys whose resolved values differ, as `section.key: a -> b`.

    A and B are each a YAML file, the name of a shipped config, a run folder or a model folder.
    """
    from recsys_moe.config.diff import differences, read_resolved

    differing = differences(read_resolved(a), read_resolved(b))
    if as_json:
        print(json.dumps({"equal": not differing, "differences": differing}))
    else:
        _print_differences(differing)
    if differing and exit_code:
        raise typer.Exit(1)


def _print_differences(differing: dict[str, Any]) -> None:
    """Coloured on a terminal alone."""
    from rich.console import Console
    from rich.text import Text

    from recsys_moe.config.diff import shown

    console = Console(highlight=False, soft_wrap=True)
    for key, value in differing.items():
        sides = (shown(value, "a"), "red"), " -> ", (shown(value, "b"), "green")
        console.print(Text.assemble((key, "bold"), ": ", *sides))
    if not differing:
        print("no difference")


def routers(
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object per router.")] = False,
) -> None:
    """List the routers: experts per example and parameters per task at the configured size."""
    from recsys_moe.config.overview import overviews

    overview_of = overviews(resolve(config, None, {}, set_ or []))
    if as_json:
        print(json.dumps({name: asdict(router) for name, router in overview_of.items()}))
        return
    row = "{:14} {:>15} {:>15} {:>10}  {}".format
    print(row("router", "in training", "at inference", "parameters", "summary"))
    for name, router in overview_of.items():
        if router.problem:
            print(row(name, "-", "-", "-", router.problem))
        else:
            sizes = router.training, router.inference, router.parameters
            print(row(name, *sizes, router.summary))
