"""`recsys-moe doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from recsys_moe.cli.options import Json, opt


def doctor(
    data: Annotated[Path | None, opt("Also check this prepared folder.")] = None,
    run: Annotated[Path | None, opt("Also check this run or model.", metavar="RUN|MODEL")] = None,
    as_json: Json = False,
) -> None:
    """Check the installation.

    Prints a summary for bug reports: versions, processor, memory, devices and extras, without
    names of users, machines or folders. Exit code 1: the installation is
    broken; 3: the data or the model are.
    """
    from recsys_moe.lab.doctor import examine

    report = examine(data, run)
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        print("\n".join(_lines(report.facts)))
        for kind in ("warnings", "problems", "invalid"):
            for text in getattr(report, kind):
                print(f"{kind.removesuffix('s')}: {text}")
        print("no problems found" if not report.exit_code else "problems found, see above")
    raise typer.Exit(report.exit_code)


def _lines(facts: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for section, entries in facts.items():
        lines.append(section)
        if isinstance(entries, list):
            lines += [f"  {_text(one)}" for one in entries] or ["  none"]
            continue
        width = max(map(len, entries)) + 2
        lines += [f"  {key:{width}}{_text(value)}" for key, value in entries.items()]
    return lines


def _text(value: Any) -> str:
    """A value in one line: `present fastapi 0.115; missing onnx`, `-` for nothing."""
    if isinstance(value, dict):
        parts = [f"{key} {_text(entry)}" for key, entry in value.items() if entry not in ([], {})]
        return ", ".join(parts)
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, bool):  # 1 == True
        return "yes" if value else "no"
    return "-" if value is None else str(value)
