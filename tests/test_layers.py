"""Imports run one way: a module imports only modules of a strictly lower rank.

Read from the syntax trees, so every import counts, at the top of a file or inside a function.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 350

RANKS = {
    "recsys_moe": -1,
    "recsys_moe.errors": -1,
    "recsys_moe.progress": -1,
    "recsys_moe.train.processes.memory": -1,
    "recsys_moe.train.processes.signals": -1,
    "recsys_moe.schema": 0,
    "recsys_moe.seeds": 0,
    "recsys_moe.section": 0,
    "recsys_moe.routers.smooth_step": 0,
    "recsys_moe.routers.sinkhorn": 0,
    "recsys_moe.routers.assignment": 0,
    "recsys_moe.routers.base": 1,
    # between base and the routers
    "recsys_moe.routers.permutation": 1.5,
    "recsys_moe.model.penalties": 2,
    "recsys_moe.model.dropout": 1,
    "recsys_moe.model.pairs": 1,
    "recsys_moe.model.dispatch": 2,
    "recsys_moe.data.columns": 1,
    "recsys_moe.data.streaming": 1.5,
    "recsys_moe.model.lazy_adam": 1,
    "recsys_moe.model.sharded": 1,
    "recsys_moe.artifact.calibration": 1,
    # routers/<file>.py: 2, without a line here, so that a router is one file and one name
    "recsys_moe.routers": 3,
    "recsys_moe.model.tasks": 4,
    "recsys_moe.model.moe": 4,
    "recsys_moe.config.text": 4,
    "recsys_moe.config.files": 4.5,
    "recsys_moe.config.settings": 5,
    "recsys_moe.artifact.metrics": 5,
    "recsys_moe.config.overview": 6,
    "recsys_moe.train.loader": 6,
    "recsys_moe.model.network": 6,
    "recsys_moe.artifact.run_folder": 6,
    "recsys_moe.train.resume": 7,
    "recsys_moe.artifact.model_folder": 7,
    "recsys_moe.artifact.evaluate": 8,
    "recsys_moe.inference.vocabulary": 5,
    "recsys_moe.inference.item_filters": 6,
    "recsys_moe.inference.catalogue": 7,
    "recsys_moe.inference.explanation": 7.5,
    "recsys_moe.inference.few_rows": 7.5,
    "recsys_moe.inference.one_pair": 7.5,
    "recsys_moe.inference.pair_scores": 8,
    "recsys_moe.inference.top_items": 8,
    "recsys_moe.inference.predictor": 8.5,
    "recsys_moe.inference.score_files": 9,
    "recsys_moe.inference.recommend_files": 9.5,
    "recsys_moe.artifact.parity": 9,
    "recsys_moe.train.module": 9,
    "recsys_moe.train.callbacks": 9,
    "recsys_moe.artifact.routing_history": 8,
    "recsys_moe.train.routing_log": 9,
    "recsys_moe.train.lean_loop": 9,
    "recsys_moe.train.checkpoints": 9,
    "recsys_moe.train.sharded_strategy": 9.5,
    "recsys_moe.train.fit": 10,
    "recsys_moe.train.processes.starter": 0,
    "recsys_moe.lab.jobs.executor": 0.25,
    "recsys_moe.train.processes.launch": 0.5,
    "recsys_moe.train.processes.joining": 1,
    "recsys_moe.train.processes.devices": 0,
    "recsys_moe.lab.compare.significance": 0,
    "recsys_moe.lab.compare.paper_figures": 1,
    "recsys_moe.lab.jobs.local_runs": 7,
    "recsys_moe.lab.compare.plan": 9,
    "recsys_moe.lab.compare.results": 10,
    "recsys_moe.lab.compare.tables": 10.5,
    "recsys_moe.lab.compare.run": 11,
    "recsys_moe.machine": 0,
    "recsys_moe.train.processes.spinning": 0.1,
    "recsys_moe.lab.doctor": 11,
    "recsys_moe.config.diff": 6,
    "recsys_moe.lab.jobs.ray_cluster": 0.5,
    "recsys_moe.lab.jobs.ray_worker": 0.5,
    "recsys_moe.lab.jobs.ray_executor": 1,
    "recsys_moe.lab.jobs.engines": 2,
    "recsys_moe.lab.tune.curve": 1,
    "recsys_moe.lab.tune.space": 6,
    "recsys_moe.lab.tune.plan": 9.5,
    "recsys_moe.lab.tune.study": 10,
    "recsys_moe.lab.tune.results": 10.5,
    "recsys_moe.lab.tune.run": 11,
    "recsys_moe.artifact.export": 11,
    "recsys_moe.serve": 11,
    "recsys_moe.lab.report": 11,
    "recsys_moe.lab.paper": 11.5,
    "recsys_moe.cli": 12,
}
FAMILIES = ("recsys_moe.serve", "recsys_moe.lab.report", "recsys_moe.lab.paper", "recsys_moe.cli")
LIGHTNING_FREE = (
    *("schema", "columns", "routers", "pairs", "dispatch", "moe", "tasks", "config", "model"),
    *("artifact", "evaluate", "predictor", "predict", "ranking", "recommender", "recommend"),
)


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    """recsys_moe/routers/base.py -> recsys_moe.routers.base, x/__init__.py -> x"""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in python_files("recsys_moe", "data_prep")}
MODULES = [name for name in FILES if name.startswith("recsys_moe")]
ROUTER_FILES = [name for name in MODULES if name.startswith("recsys_moe.routers.")]
PREPARATIONS = [name for name in FILES if name.startswith("data_prep")]


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


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


def imports_of(module: str) -> set[str]:
    path = FILES[module]
    return imports_in(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")


def family(module: str) -> str:
    return next((name for name in FAMILIES if inside(module, name)), module)


def rank(module: str) -> float:
    name = family(module)
    if name in RANKS:
        return RANKS[name]
    if inside(name, "recsys_moe.routers"):
        return 2
    pytest.fail(
        f"{name} has no rank: add it to RANKS in tests/test_layers.py, above all it imports"
    )


def offences(module: str, imported: set[str]) -> list[str]:
    """One line for each import that does not go strictly down."""
    ours = sorted(name for name in imported if inside(name, "recsys_moe"))
    return [
        f"{module} (rank {rank(module)}) imports {name} (rank {rank(name)})"
        for name in ours
        if family(name) != family(module) and rank(name) >= rank(module)
    ]


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_strictly_down(module: str) -> None:
    rank(module)
    assert offences(module, imports_of(module)) == []


def test_an_import_upwards_sideways_or_inside_a_function_is_an_offence() -> None:
    def found(module: str, source: str) -> int:
        return len(offences(module, imports_in(source, module)))

    assert found("recsys_moe.model.penalties", "def f():\n    import recsys_moe.cli") == 1
    assert found("recsys_moe.model.moe", "from recsys_moe import tasks, schema") == 1
    assert found("recsys_moe.routers.a", "from .b import B\nfrom .base import Router") == 1
    assert found("recsys_moe.serve.app", "from recsys_moe.serve.batcher import Batcher") == 0


def test_a_module_without_a_rank_is_told_to_join_the_table() -> None:
    with pytest.raises(pytest.fail.Exception, match="add it to RANKS in tests/test_layers.py"):
        rank("recsys_moe.newcomer")


@pytest.mark.parametrize("module", ROUTER_FILES)
def test_a_router_file_imports_only_helpers_and_the_bottom_row(module: str) -> None:
    ours = {name for name in imports_of(module) if inside(name, "recsys_moe")}
    helpers = {"recsys_moe.routers.base", "recsys_moe.routers.permutation"}
    assert {name for name in ours if rank(name) > 0} <= helpers


@pytest.mark.parametrize("module", PREPARATIONS)
def test_data_prep_imports_nothing_of_ours_but_the_schema(module: str) -> None:
    imported = imports_of(module)
    assert {name for name in imported if inside(name, "recsys_moe")} <= {"recsys_moe.schema"}
    assert {name for name in imported if name.split(".")[0] in ("torch", "lightning")} == set()


@pytest.mark.parametrize("module", [m for m in MODULES if not inside(m, "recsys_moe.cli")])
def test_only_the_command_line_imports_typer_or_data_prep(module: str) -> None:
    assert {name.split(".")[0] for name in imports_of(module)}.isdisjoint({"typer", "data_prep"})


@pytest.mark.parametrize("part", LIGHTNING_FREE)
def test_what_predicts_does_not_import_lightning(part: str) -> None:
    for module in (m for m in MODULES if inside(m, f"recsys_moe.{part}")):
        heads = {name.split(".")[0] for name in imports_of(module)}
        assert heads.isdisjoint({"lightning", "pytorch_lightning"}), module


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("recsys_moe.schema", "torch"),
        ("recsys_moe.cli", "torch"),  # so that --help answers at once
        ("recsys_moe.inference.predictor", "lightning"),
    ],
)
def test_importing_the_module_does_not_load(module: str, unwanted: str) -> None:
    code = f"import sys, {module}; sys.exit({unwanted!r} in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr or f"{module} loads {unwanted}"


@pytest.mark.parametrize(
    "path",
    python_files("recsys_moe", "data_prep", "tests", "benchmarks"),
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_a_source_file_is_short_and_plain_ascii(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    strange = {n: line for n, line in enumerate(text.splitlines(), 1) if not line.isascii()}
    assert strange == {}
    assert len(text.splitlines()) <= MAX_LINES
