"""The house: a room imports only rooms on lines above its own, never sideways.

Read from the syntax trees, so every import counts, at the top of a file or inside a function.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from recsys_moe.kinds import KINDS

ROOT = Path(__file__).parents[1]
MAX_LINES, MAX_FUNCTION = 300, 60

# Each room may import the ones on lines above it. Two rooms on one line do not know each other.
PACKAGES = (
    "errors kinds schema task seeds section machine progress files folders interrupts raw_ids "
    "cells encodings frames outside",
    "routers",
    "model",
    "data",
    "config",
    "artifact",
    "train inference",
    "serve lab",
    "cli",
    "__main__",
)
FLOOR = {room: floor for floor, rooms in enumerate(PACKAGES) for room in rooms.split()}
BASE_MODULES = PACKAGES[0].split()
SHARED = {
    f"recsys_moe.{name}"
    for name in (
        "kinds",
        "schema",
        "files",
        "folders",
        "interrupts",
        "raw_ids",
        "cells",
        "encodings",
        "frames",
    )
}
"""What both packages agree on; all of ours that data_prep may import."""


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    """recsys_moe/routers/base.py -> recsys_moe.routers.base, x/__init__.py -> x"""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in python_files("recsys_moe", "data_prep")}
OUTSIDE = {"research", "benchmarks", "tests"}
"""What neither the packages nor the examples import."""
MODULES = [name for name in FILES if name.startswith("recsys_moe.")]


def room(module: str) -> str:
    return module.split(".")[1]


def inside(module: str, *packages: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in packages)


def imports_in(source: str, module: str, is_package: bool = False) -> set[str]:
    """Dotted names of all modules that `source`, being `module`, imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            package = module if is_package else module.rpartition(".")[0]
            origin = importlib.util.resolve_name(dots + (node.module or ""), package)
            names.update(_imported(origin, alias.name) for alias in node.names)
    return names


def _imported(origin: str, name: str) -> str:
    """`from origin import name` imports the module origin.name if there is one, else origin."""
    return f"{origin}.{name}" if f"{origin}.{name}" in FILES else origin


@cache
def imports_of(module: str) -> set[str]:
    path = FILES[module]
    return imports_in(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")


def offences(module: str, imported: set[str]) -> list[str]:
    """One line for each import that does not go to a room above."""
    rooms = {room(name) for name in imported if name.startswith("recsys_moe.")} - {room(module)}
    return [
        f"{module} imports {other}"
        for other in sorted(rooms)
        if FLOOR[other] >= FLOOR[room(module)] and {other, room(module)} - set(BASE_MODULES)
    ]


def test_a_package_imports_only_layers_below() -> None:
    assert len(MODULES) > 150
    assert [line for module in MODULES for line in offences(module, imports_of(module))] == []


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("recsys_moe.model.penalties", "def f():\n    import recsys_moe.cli", 1),
        ("recsys_moe.model.moe", "from recsys_moe import data, config, seeds", 2),
        ("recsys_moe.model.moe", "from recsys_moe.data import columns", 1),
        ("recsys_moe.data.columns", "from recsys_moe.model import request", 0),
        ("recsys_moe.train.fit", "from recsys_moe.inference.predictor import Predictor", 1),
        ("recsys_moe.serve.app", "from recsys_moe.lab import doctor", 1),
        ("recsys_moe.serve.app", "from recsys_moe.serve.batcher import Batcher", 0),
        ("recsys_moe.errors", "from recsys_moe.config.files import merge", 1),
        ("recsys_moe.schema", "from recsys_moe.errors import DataError", 0),
    ],
)
def test_an_import_upwards_sideways_or_inside_a_function_is_an_offence(
    module: str, source: str, count: int
) -> None:
    assert len(offences(module, imports_in(source, module))) == count


def circles(modules: list[str]) -> list[str]:
    """Modules that import themselves through others, imports inside functions included."""
    graph = {name: imports_of(name) & set(modules) - {name} for name in modules}
    while leaves := {name for name, imported in graph.items() if not imported & graph.keys()}:
        graph = {name: graph[name] for name in graph.keys() - leaves}
    return sorted(graph)


def test_no_module_imports_itself_through_others() -> None:
    # A package's front imports what lies in it, and `recsys_moe` offers everything.
    assert circles([name for name in FILES if name != "recsys_moe"]) == []


def test_the_base_modules_need_no_torch_when_it_is_imported() -> None:
    names = ", ".join(f"recsys_moe.{name}" for name in BASE_MODULES)
    assert not loads(f"import {names}", "torch")


def test_a_router_file_imports_no_other_router() -> None:
    table = "recsys_moe.routers"
    shared = {f"{table}.base", f"{table}.settings"}
    routers = {name for name in imports_of(table) if inside(name, table)} - shared
    assert len(routers) > 20
    assert importers({table, *routers}, [m for m in MODULES if inside(m, table)]) == {table}


def test_data_prep_imports_nothing_of_ours_but_what_both_share() -> None:
    modules = [name for name in FILES if inside(name, "data_prep")]
    ours = {name for name in FILES if inside(name, "recsys_moe")}
    assert importers(ours - SHARED, modules) == set()
    assert users_of({"torch", "lightning"}, modules) == set()


def test_neither_packages_nor_examples_import_research_benchmarks_or_tests() -> None:
    assert users_of(OUTSIDE, list(FILES)) == set()
    for path in python_files("examples"):
        imported = imports_in(path.read_text(encoding="utf-8"), module_name(path))
        assert OUTSIDE.isdisjoint(name.split(".")[0] for name in imported), path


def test_only_the_command_line_imports_typer_or_data_prep() -> None:
    users = users_of({"typer", "data_prep"}, MODULES)
    assert users and {module for module in users if not inside(module, "recsys_moe.cli")} == set()


def test_only_training_imports_lightning() -> None:
    users = users_of({"lightning", "pytorch_lightning"}, MODULES)
    assert users and {module for module in users if not inside(module, "recsys_moe.train")} == set()


def importers(wanted: set[str], modules: list[str]) -> set[str]:
    """Those of `modules` that import a module of `wanted`."""
    return {module for module in modules if not imports_of(module).isdisjoint(wanted)}


def users_of(packages: set[str], modules: list[str]) -> set[str]:
    """Those of `modules` that import anything of these packages."""
    return {m for m in modules if not packages.isdisjoint(n.split(".")[0] for n in imports_of(m))}


def loads(code: str, module: str) -> bool:
    """Does running `code` in a fresh interpreter import `module`?"""
    code = f"import sys; {code}; sys.exit({module!r} in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert not result.stderr
    return bool(result.returncode)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import recsys_moe", "torch"),
        ("import recsys_moe; recsys_moe.prepare", "torch"),
        ("import recsys_moe.cli.commands", "torch"),  # so that --help answers at once
        ("import recsys_moe.inference.predictor", "lightning"),
        ("import recsys_moe.serve.server", "lightning"),
    ],
)
def test_importing_does_not_load(code: str, unwanted: str) -> None:
    assert not loads(code, unwanted)


def test_the_package_has_few_entries_beside_the_base_modules() -> None:
    entries = {path.stem for path in (ROOT / "recsys_moe").iterdir()} - {"__pycache__"}
    assert len(entries - set(BASE_MODULES)) <= 13
    assert {*FLOOR} - {"files"} <= entries


def test_source_files_are_short_and_plain_ascii() -> None:
    files = python_files("recsys_moe", "data_prep", "tests", "benchmarks", "research", "examples")
    assert len(files) > 500
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert text.isascii(), path
        most = 350 if "tests" in path.parts[len(ROOT.parts) :] else MAX_LINES
        assert text.count("\n") <= most, path


def test_a_function_fits_on_a_screen() -> None:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    long = {
        f"{module}.{node.name}": lines
        for module, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds) and (lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION
    }
    assert long == {}


def outside(room: str) -> list[Path]:
    files = python_files("recsys_moe", "data_prep")
    return [path for path in files if not module_name(path).startswith(room)]


def test_no_file_outside_kinds_names_a_kind() -> None:
    """`ranking` is also the word for lists, and may stand anywhere."""
    names = set(KINDS) - {"ranking"}
    for path in outside("recsys_moe.kinds"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
        assert not texts & names, path


def test_no_file_outside_model_names_the_class_of_the_default_model() -> None:
    for path in outside("recsys_moe.model"):
        assert "MultiTaskMoE" not in path.read_text(encoding="utf-8"), path
