"""Each program of examples/ runs as its first lines say, on the public API."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest

import recsys_moe
from tests.conftest import TINY_MODEL

EXAMPLES = Path(__file__).parents[1] / "examples"
PUBLIC = {"recsys_moe", "recsys_moe.routers"}


def program(name: str) -> dict[str, object]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")


def test_the_layer_learns_in_a_plain_loop(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = program("own_model")["main"]()  # type: ignore[operator]
    assert after < 0.8 * before
    assert "experts in use" in capsys.readouterr().out


def test_a_router_of_ones_own_routes(capsys: pytest.CaptureFixture[str]) -> None:
    routing = program("own_router")["main"]()  # type: ignore[operator]
    assert (routing.selected_BE.sum(1) == 2).all()
    assert "mixtures (8, 1, 8)" in capsys.readouterr().out


def test_the_predictor_of_a_run_answers(
    prepared: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = {"model": TINY_MODEL, "trainer": {"max_epochs": 1}}
    recsys_moe.fit(config, prepared, tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["notebook_predictor.py", str(tmp_path / "run")])
    program("notebook_predictor")
    assert "['watch', 'rating']" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.stem)
def test_an_example_imports_the_public_api_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {str(name) for name in imported if str(name).startswith("recsys_moe")} <= PUBLIC
