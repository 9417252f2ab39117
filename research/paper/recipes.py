"""Recipes in studies/: which runs a table or figure of the paper needs, and what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from recsys_moe.config.files import merge, read_config_file
from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.schema import Schema
from recsys_moe.section import Section

FigureKind = Literal["curves", "inference", "balance", "bias", "tuning", "maps"]
WITHOUT_RUNS = ("bias",)


class Recipe(Section):
    """What a study of the paper trains. The file's name is the recipe's."""

    makes: str
    """The table or figure of the paper."""
    reading: str
    """What the paper finds, and what is different here."""
    prepare: str | None = None
    """The command that makes the data of the study."""
    config: str | None = None
    """A shipped configuration, common to all runs."""
    routers: list[str] = []
    """Routers, or labels that `settings` gives a router."""
    settings: dict[str, dict[str, Any]] = {}
    """Sections of the configuration per label."""
    weights: list[str] = []
    """Task weights in the order of the data, as `--weights` of compare."""
    seeds: Annotated[int, Field(ge=1)] = 1
    """Runs per router and task weights."""
    trials: Annotated[int, Field(ge=1)] | None = None
    """Trials per router of a tuning study, which has no seeds."""
    common: dict[str, Any] = Field(default={}, alias="set")
    """Sections of the configuration, over `config`, for all runs."""
    figure: FigureKind | None = None
    """What is drawn from the runs besides the table."""

    @model_validator(mode="after")
    def _runs_are_said(self) -> Recipe:
        if (self.figure in WITHOUT_RUNS) == bool(self.routers):
            raise ValueError(f"routers must be named unless figure is one of {WITHOUT_RUNS}")
        return self

    def file(self) -> dict[str, Any]:
        """The sections that all runs share."""
        return merge(read_config_file(self.config) if self.config else {}, self.common)

    def check(self, data: Path | None, out: Path | None, **options: Any) -> tuple[Path, Path]:
        """The folders of the data and to write, where nothing is missing or has no use.

        `options`: seeds, settings and trials as they stand on the command line; None: not given.
        A study without runs needs no data. Raises ConfigError.
        """
        useful = {"tuning": ["trials"], "bias": []}.get(self.figure or "", ["seeds", "settings"])
        for name, value in options.items():
            if value is not None and name not in useful:
                raise ConfigError(
                    f"--{name} has no meaning for this study, got {value}; leave it out"
                )
        if out is None:
            raise ConfigError(f"--out is needed: the folder for the runs of {self.makes}")
        if data is None and self.routers:
            raise ConfigError(f"--data is needed for {self.makes}; make it with: {self.prepare}")
        return data or Path(), out

    def data_in_words(self, schema: Schema) -> str:
        """What the study runs on here, and what the recipe was made for."""
        here = f"data: {schema.name} (protocol {schema.protocol}), {schema.rows['train']} rows"
        return f"{here} to train on; the recipe is made for: {self.prepare}"


def recipes() -> dict[str, Recipe]:
    """All shipped recipes by name."""
    return {file.stem: read_recipe(file) for file in sorted(folder().glob("*.yaml"))}


def find_recipe(name: str) -> Recipe:
    """The shipped recipe `name`. Raises ConfigError naming the nearest."""
    known = [file.stem for file in sorted(folder().glob("*.yaml"))]
    if name not in known:
        raise ConfigError(f"unknown recipe {name!r}; {suggestion(name, known)}")
    return read_recipe(folder() / f"{name}.yaml")


def read_recipe(file: Path) -> Recipe:
    """Raises ConfigError when `file` is none."""
    try:
        return Recipe.model_validate(read_config_file(str(file)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the recipe"
        raise ConfigError(f"{file}: {where}: {first['msg']}") from None


def folder() -> Path:
    return Path(__file__).parent / "studies"
