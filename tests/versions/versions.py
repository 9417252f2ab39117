"""Python 3.10 to 3.14, each with the pinned and with the lowest versions: do the basics hold?

    python tests/versions/versions.py
    python tests/versions/versions.py --python 3.11 --hold torch==2.13.0+cpu

For each pair uv finds wheels (nothing is compiled), makes an environment and runs BASICS there.
Builds of torch for CUDA are gigabytes: where no other can be had, torch and what needs it are left
out, and PREPARING is run. `--torch-backend cpu` asks torch's own index for its CPU builds, `--cuda`
takes the gigabytes. What uv asks and answers is in `FOLDER/*.log`. Writes `FOLDER/table.md` as it
goes, and as the last line on stdout a JSON object; exit code 1 when a test failed. Needs uv.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
RESOLUTIONS = {"pinned": ("-c", "constraints.txt"), "lowest-direct": ()}
"""Those of constraints.txt; of what pyproject.toml names the lowest that has a wheel."""
PREPARING = (
    "tests/data_prep/test_synthetic.py",
    "tests/data_prep/test_movielens.py",
    "tests/data_prep/test_writer.py",
)
BASICS = (
    *PREPARING,
    "tests/formats",
    "tests/cli/test_cli.py::test_from_nothing_to_recommendations",
    "tests/artifact/test_export.py::test_the_command_line_writes_a_copy_that_loads_and_says_what_it_measured",
    "tests/artifact/test_export.py::test_the_graph_predicts_what_the_predictor_says_about_raw_ids",
    "tests/inference/test_predict.py",
    "tests/serve/test_api.py",
    "tests/serve/test_refusals.py",
)
"""Prepare, fit, evaluate, export, predict, serve; what earlier versions wrote."""
OF_CUDA = re.compile(r"^(nvidia|cuda|triton)\b", re.MULTILINE)
NEED_TORCH = re.compile(r"^(torch|lightning|pytorch|nvidia|cuda|triton)", re.IGNORECASE)
LIMIT = 3600  # seconds of one command


@dataclass(frozen=True)
class Row:
    """One environment; `seconds` are those of its tests."""

    python: str
    versions: str
    torch: str = "-"
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: int = 0
    remark: str = ""


class Failed(Exception):
    """A step ended otherwise than with 0; says which, and its last line."""


def main() -> int:
    chosen = parser().parse_args()
    folder = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for python in chosen.python:
        for versions in chosen.resolution:
            rows.append(tried(python, versions, folder, chosen))
            (folder / "table.md").write_text(table(rows))
    print(table(rows))
    print(json.dumps([asdict(row) for row in rows]))
    return int(any(row.failed for row in rows))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--python", nargs="+", default=PYTHONS, metavar="X.Y")
    made.add_argument("--resolution", nargs="+", default=[*RESOLUTIONS], choices=RESOLUTIONS)
    made.add_argument("--hold", nargs="*", default=[], metavar="NAME==VERSION")
    made.add_argument("--torch-backend", metavar="cpu")
    made.add_argument("--cuda", action="store_true", help="torch for CUDA where no other is had")
    made.add_argument("--folder", type=Path, default=ROOT / "build/versions")
    return made


def tried(python: str, versions: str, folder: Path, chosen: argparse.Namespace) -> Row:
    """What came of one environment; never raises for what cannot be had."""
    place, log = folder / f"{python}-{versions}", folder / f"{python}-{versions}.log"
    log.write_text("")
    try:
        pins, torch = resolved(python, versions, place, chosen, log)
        interpreter = installed(python, pins, place, log)
        return counted(Row(python, versions, torch or "-"), interpreter, place, log)
    except Failed as failure:
        return Row(python, versions, remark=f"not tried: {failure}")


def resolved(
    python: str, versions: str, place: Path, chosen: argparse.Namespace, log: Path
) -> tuple[str, str | None]:
    """The lines `name==version` to install, and torch's version: None where only CUDA has it."""
    out, held = Path(f"{place}.txt"), Path(f"{place}.in")
    held.write_text("\n".join(chosen.hold))
    words = ["pip", "compile", "pyproject.toml", "--extra", "dev", "--python-version", python]
    words += ["--only-binary", ":all:", "--no-header", "--no-annotate", "--quiet", "--upgrade"]
    words += [*RESOLUTIONS[versions], "-c", str(held), "-o", str(out)]
    words += [] if versions == "pinned" else ["--resolution", versions]
    words += ["--torch-backend", chosen.torch_backend] if chosen.torch_backend else []
    uv(log, *words)
    return for_this_machine(out.read_text(), cuda=chosen.cuda)


def for_this_machine(pins: str, *, cuda: bool) -> tuple[str, str | None]:
    """`pins` and torch's version; where it needs CUDA and may not, without torch and None."""
    if cuda or not OF_CUDA.search(pins):
        found = re.search(r"^torch==(\S+)", pins, re.MULTILINE)
        return pins, found[1] if found else None
    lines = pins.splitlines(keepends=True)
    return "".join(line for line in lines if not NEED_TORCH.match(line)), None


def installed(python: str, pins: str, place: Path, log: Path) -> Path:
    """The interpreter of a new environment with just `pins`."""
    wanted = Path(f"{place}.txt")
    wanted.write_text(pins)
    uv(log, "venv", "--clear", "--python", python, str(place))
    interpreter = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    into = ("--python", str(interpreter), "--no-deps", "--only-binary", ":all:")
    uv(log, "pip", "install", *into, "-r", str(wanted))
    return interpreter


def counted(row: Row, interpreter: Path, place: Path, log: Path) -> Row:
    """`row` with what its tests came to; without torch, those of preparing."""
    report = Path(f"{place}.xml")
    report.unlink(missing_ok=True)
    whole = row.torch != "-"
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    # Old versions warn of what new ones mend; the pinned set must not warn.
    words += ["-W", "default"] if row.versions == "lowest-direct" else []
    started = time.monotonic()
    ended = run(log, str(interpreter), *words, *(BASICS if whole else PREPARING))
    if not report.exists():
        raise Failed(f"pytest ended with {ended.returncode}; see {log.name}")
    numbers = counts(report.read_text())
    said = "" if whole else "preparing alone: torch is only there for CUDA"
    seconds = round(time.monotonic() - started)
    return Row(row.python, row.versions, row.torch, *numbers, seconds=seconds, remark=said)


def counts(xml: str) -> tuple[int, int, int]:
    """Passed, failed (errors too) and skipped, of a JUnit report."""
    suite = next(ET.fromstring(xml).iter("testsuite"))
    names = ("tests", "failures", "errors", "skipped")
    total, failures, errors, skipped = (int(suite.get(name, 0)) for name in names)
    return total - failures - errors - skipped, failures + errors, skipped


def table(rows: Iterable[Row]) -> str:
    """Of Markdown."""
    names = ("Python", "versions", "torch", "passed", "failed", "skipped", "seconds", "remark")
    lines = [names, ("---",) * len(names), *(tuple(asdict(row).values()) for row in rows)]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def uv(log: Path, *words: str) -> None:
    """The command, or Failed with what it said first."""
    ended = run(log, sys.executable, "-m", "uv", *words)
    if ended.returncode:
        said = [line.strip() for line in ended.stdout.splitlines() if line.startswith("error")]
        raise Failed(f"uv {words[0]}: {said[0] if said else ended.returncode}")


def run(log: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """With both streams in `log` too; uv looks where pip looks, and finds pyenv's Pythons."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    if places := env.get("PIP_FIND_LINKS"):
        env.setdefault("UV_FIND_LINKS", ",".join(places.split()))
    pyenv = Path(env.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/*/bin")
    env["PATH"] = os.pathsep.join([*map(str, sorted(pyenv)), env["PATH"]])
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        ended = subprocess.run(words, cwd=ROOT, env=env, text=True, timeout=LIMIT, **both)
    except subprocess.TimeoutExpired:
        raise Failed(f"no end within {LIMIT} s; see {log.name}") from None
    with log.open("a") as stream:
        stream.write(f"$ {' '.join(words)}\n{ended.stdout}\n")
    return ended


if __name__ == "__main__":
    sys.exit(main())
