"""`recsys-moe config show|schema` and `recsys-moe routers`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from recsys_moe.cli.training import ConfigFile, RouterName, Sets, resolve

app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)


@app.command()
def show(config: ConfigFile = None, router: RouterName = None, set_: Sets = None) -> None:
    """Print the resolved configuration, explained, as YAML that `fit --config` accepts."""
    print(resolve(config, router, {}, set_ or []).to_yaml(comments=True), end="")


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    from recsys_moe.config import Config

    print(json.dumps(Config.model_json_schema(), indent=2))


def routers(
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object per router.")] = False,
) -> None:
    """List the routers: experts per example and parameters per task at the configured size."""
    from recsys_moe.overview import overviews

    found = overviews(resolve(config, None, {}, set_ or []))
    if as_json:
        print(json.dumps({name: asdict(router) for name, router in found.items()}))
        return
    row = "{:14} {:>15} {:>15} {:>10}  {}".format
    print(row("router", "in training", "at inference", "parameters", "summary"))
    for name, router in found.items():
        if router.problem:
            print(row(name, "-", "-", "-", router.problem))
        else:
            sizes = router.training, router.inference, router.parameters
            print(row(name, *sizes, router.summary))
