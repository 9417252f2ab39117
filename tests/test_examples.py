"""Each program of examples/ runs as its first lines say, on the public API."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from pathlib import Path

import pytest

import recsys_moe
from recsys_moe.artifact.evaluate import evaluate_artifact
from tests.conftest import TINY_MODEL

EXAMPLES = Path(__file__).parents[1] / "examples"
PUBLIC = {"recsys_moe", "recsys_moe.routers", "recsys_moe.errors"}


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


def test_a_model_of_ones_own_is_trained_and_recommends(prepared: Path, tmp_path: Path) -> None:
    assert len(program("own_model_in_fit")["main"](str(prepared), str(tmp_path / "run"))) == 5  # type: ignore[operator]
    assert len((EXAMPLES / "own_model_in_fit.py").read_text().splitlines()) < 80


def test_the_predictor_of_a_run_answers(
    prepared: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = {"model": TINY_MODEL, "trainer": {"max_epochs": 1}}
    recsys_moe.fit(prepared, tmp_path / "run", config)
    monkeypatch.setattr(sys, "argv", ["notebook_predictor.py", str(tmp_path / "run")])
    program("notebook_predictor")
    assert "['watch', 'rating']" in capsys.readouterr().out


def test_a_plain_trainer_reaches_the_losses_of_fit(prepared: Path, tmp_path: Path) -> None:
    losses = program("plain_trainer")["main"](str(prepared), str(tmp_path / "plain"))  # type: ignore[operator]
    steps = {"batch_size": 64, "max_epochs": 3}
    config = {"model": TINY_MODEL, "trainer": steps}
    result = recsys_moe.fit(prepared, tmp_path / "run", config)
    tested = evaluate_artifact(tmp_path / "run", "test", None)
    assert losses == pytest.approx([result["loss"], tested["loss"]], rel=1e-6)
    models = [tmp_path / "plain/model", tmp_path / "run/model"]
    weights = [(model / "weights.safetensors").read_bytes() for model in models]
    assert weights[0] == weights[1]


def test_the_page_on_lightning_shows_the_example() -> None:
    source = (EXAMPLES / "plain_trainer.py").read_text(encoding="utf-8")
    page = (EXAMPLES.parent / "docs/how-to/lightning.md").read_text(encoding="utf-8")
    assert source[source.index("from __future__") :].rstrip() in page


def private(source: str) -> list[str]:
    """What `source` takes of recsys_moe that is not public, read from its syntax tree."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if ours(alias.name) and "." in alias.name]
        elif isinstance(node, ast.ImportFrom) and ours(str(node.module)):
            offered = getattr(importlib.import_module(str(node.module)), "__all__", None)
            for name in (alias.name for alias in node.names):
                is_public = node.module in PUBLIC and name in (offered or [name])
                if not is_public or name.startswith(("_", "*")):
                    found.append(f"{node.module}.{name}")
    return found


def ours(module: str) -> bool:
    return module.split(".")[0] in ("recsys_moe", "data_prep", "tests")


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: str(path.relative_to(EXAMPLES))
)
def test_an_example_imports_the_public_api_alone(path: Path) -> None:
    assert private(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from recsys_moe import MoE, router\nimport recsys_moe", []),
        ("from recsys_moe.routers import find_router", []),
        ("def f():\n    from recsys_moe.model.moe import MoE", ["recsys_moe.model.moe.MoE"]),
        ("from recsys_moe.routers import base", ["recsys_moe.routers.base"]),
        ("from recsys_moe.errors import *", ["recsys_moe.errors.*"]),
        ("from data_prep.synthetic import prepare", ["data_prep.synthetic.prepare"]),
    ],
)  # fmt: skip
def test_what_is_private_is_found_in_a_syntax_tree(source: str, found: list[str]) -> None:
    assert private(source) == found
