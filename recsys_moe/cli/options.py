"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def opt(text: str, *names: str, **more: Any) -> Any:
    """An option with this help; `names` where the parameter's own is not its name."""
    return typer.Option(*names, help=text, **more)


Model = Annotated[Path, typer.Argument(metavar="RUN|MODEL", help="Run folder or model folder.")]
Data = Annotated[Path, opt("Prepared folder.")]
MovedData = Annotated[Path | None, opt("Prepared folder, if it has moved.")]
Continued = Annotated[Path, opt("Folder to create or continue.")]
Json = Annotated[bool, opt("Print JSON.", "--json")]
Ranking = Annotated[bool, opt("Also evaluate top-N lists of all items, per user.", "--ranking")]
Events = Annotated[
    Path | None, opt("Events since training, as `serve --events` keeps them (JSON Lines).")
]
Retrieve = Annotated[
    int | None, opt("Two stages: the bilinear term leaves so many items per user.", min=1)
]
Overwrite = Annotated[bool, opt("Replace existing output of this command.", "--overwrite")]

ConfigFile = Annotated[
    str | None, opt("YAML file, or the name of a shipped configuration, e.g. quickstart.")
]
RouterName = Annotated[
    str | None, opt("Router: a name from `recsys-moe routers`, or module:Class.")
]
Sets = Annotated[
    list[str] | None,
    opt(
        "Set any configuration key, e.g. optim.eps=1e-8. Repeatable.", "--set", metavar="KEY=VALUE"
    ),
]
K = Annotated[int | None, opt("Experts selected per example.")]
Experts = Annotated[int | None, opt("Number of experts.")]
MaxEpochs = Annotated[int | None, opt("Maximum number of epochs.")]
BatchSize = Annotated[int | None, opt("Rows per training step, over all devices.")]
Lr = Annotated[float | None, opt("Learning rate of Adam, e.g. 1e-3.")]
Devices = Annotated[int | None, opt("Devices (GPUs or CPU processes) per run and machine.")]
Weights = Annotated[
    str | None, opt("Loss weight of each task, in the data's order, e.g. 0.9,0.1.", metavar="W,...")
]

Engine = Annotated[str, opt("Where runs execute: local, or ray (a cluster).")]
Address = Annotated[str | None, opt("Address of the cluster: HOST:PORT or auto.")]
CpusPerRun = Annotated[int | None, opt("On a cluster: CPUs per run; 1 by default.", min=1)]
GpusPerRun = Annotated[int | None, opt("On a cluster: GPUs per run; 0 by default.", min=0)]
Jobs = Annotated[int | None, opt("Parallel runs; by default one per core, or one on a GPU.")]
