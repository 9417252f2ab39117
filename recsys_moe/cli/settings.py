"""`recsys-moe config show|schema` and `recsys-moe routers`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from recsys_moe.cli.training import ConfigFile, RouterName, Sets, resolve

app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)


@app.command()
def show(config: ConfigFile = None, router: RouterName = None, set_: Sets = None) -> None:
    """Print the resolved configuration as YAML that `fit --config` accepts."""
    print(resolve(config, router, {}, set_ or []).to_yaml(), end="")


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    from recsys_moe.config import Config

    print(json.dumps(Config.model_json_schema(), indent=2))


def routers(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the routers."""
    from recsys_moe.routers import ROUTERS

    if as_json:
        print(json.dumps({name: router.summary for name, router in ROUTERS.items()}))
        return
    for name, router in ROUTERS.items():
        print(f"{name:14} {router.summary}")
