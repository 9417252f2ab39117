"""JSON and YAML of a million levels in every file that a command reads: one line, at once."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recsys_moe.artifact import run_folder
from recsys_moe.config import files
from recsys_moe.config.files import read_config_file
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.files import sha256_file
from recsys_moe.lab.compare.plan import make_plan, settle
from recsys_moe.lab.compare.request import ComparisonRequest
from tests.conftest import Command

KEPT = Path(__file__).parents[1] / "formats" / "0.1" / "ids"
LEVELS = 10**6
DEEP = {"lists": "[" * LEVELS, "whole": "[" * LEVELS + "]" * LEVELS, "objects": '{"a":' * LEVELS}
SECONDS = 10


@contextmanager
def at_once() -> Iterator[None]:
    start = time.process_time()
    yield
    assert time.process_time() - start < SECONDS


@pytest.fixture(params=DEEP)
def deep(request: pytest.FixtureRequest) -> str:
    return DEEP[request.param]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A run of an older version and its data."""
    place = Path(shutil.copytree(KEPT, tmp_path / "kept"))
    lock = place / "run" / "data.lock.json"
    if lock.exists():
        lock.unlink()
    hashes = run_folder.data_hashes(place / "data")
    lock.write_text(json.dumps({"folder": str(place / "data"), "files": hashes}))
    return place


def signed(model: Path, name: str, content: str) -> None:
    (model / name).write_text(content)
    manifest = json.loads((model / "manifest.json").read_text())
    manifest["files"][name] = sha256_file(model / name)
    (model / "manifest.json").write_text(json.dumps(manifest))


def fails(command: Command, code: int, place: str, *words: object) -> None:
    """One short line on stderr that names `place`."""
    with at_once():
        message = command.fails(code, *words)
    assert place in message and len(message) < 600


def test_files_of_models_data_and_results_that_are_nested_too_deeply(
    command: Command, kept: Path, deep: str
) -> None:
    model, old = kept / "run" / "model", kept / "old"
    ask = ["recommend", kept / "run", "--user", "1"]
    for name in ("card.json", "calibration.json", "schema.json", "config.yaml"):
        before = (model / name).read_text()
        signed(model, name, deep)
        fails(command, 3, name, *ask)
        signed(model, name, before)
    (model / "manifest.json").write_text(deep)
    fails(command, 3, "manifest.json is damaged", *ask)
    (kept / "data" / "schema.json").write_text(deep)
    fit = ["fit", "--data", kept / "data", "--out", kept / "new"]
    fails(command, 3, "schema.json: not valid JSON", *fit)
    old.mkdir()
    (old / "plan.json").write_text("{}")
    (old / "results.json").write_text(deep)
    fails(command, 3, "results.json is damaged", "report", old, "--out", kept / "new")
    assert not (kept / "new").exists()


@pytest.mark.parametrize("content", ["deep", "{", '{"files": 1, "folder": 1}'])
def test_what_a_run_wrote_of_its_data_is_damaged(
    command: Command, kept: Path, deep: str, content: str
) -> None:
    lock = kept / "run" / "data.lock.json"
    lock.write_text(deep if content == "deep" else content)
    fails(command, 3, "data.lock.json is damaged", "evaluate", kept / "run")
    with at_once(), pytest.raises(DataError, match=r"data\.lock\.json is damaged: .*"):
        run_folder.locked_hashes(kept / "run")


def test_an_evaluation_that_is_nested_without_end_is_replaced(
    command: Command, kept: Path, deep: str
) -> None:
    file = kept / "run" / "evaluation" / "test.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(deep)
    words = [kept / "run", "--out", kept / "exported"]
    fails(command, 3, "test.json is damaged: nested", "export", *words)
    with at_once():
        assert command("evaluate", kept / "run", "--data", kept / "data").exit_code == 0
    assert "loss" in json.loads(file.read_text())


@pytest.mark.parametrize("verb", ["compare", "tune"])
def test_a_plan_that_is_nested_without_end(
    command: Command, kept: Path, deep: str, verb: str
) -> None:
    out = kept / "plan"
    settle(make_plan(ComparisonRequest(routers=("topk",), seeds=(0,)), kept / "data"), out)
    (out / "plan.json").write_text(deep)
    asked = (
        ["--routers", "topk", "--seeds", "1"]
        if verb == "compare"
        else ["--trials", "1", "--router", "topk"]
    )
    fails(command, 2, "plan.json is damaged", verb, "--data", kept / "data", "--out", out, *asked)


YAML: dict[str, Callable[[int], str]] = {
    "lists": lambda n: "a: " + "[" * (n - 3),
    "whole lists": lambda n: "a: " + "[" * (n // 2 - 2) + "]" * (n // 2 - 2),
    "mappings": lambda n: "{a: " * (n // 4),
    "rows": lambda n: "- " * (n // 2),
    "keys": lambda n: "? " * (n // 2),
    "wide": lambda n: "a: [" + "1," * (n // 2 - 4) + "]",
    "steps": lambda n: "\n".join(" " * step + "a:" for step in range(int((2 * n) ** 0.5) - 3)),
    "merges": lambda n: "a:\n" + "  <<: {a: 1}\n" * (n // 14),
    "merges in merges": lambda n: "{<<: " * (n // 5),
    "anchors": lambda n: "a: [" + "&a 1," * (n // 5 - 2),
    "tags": lambda n: "a: [" + "!!str 1," * (n // 8 - 2) + "]",
    "quotes": lambda n: 'a: "' + "\\x41" * (n // 4 - 2) + '"',
    "sixties": lambda n: "a: 1" + ":59" * (n // 3 - 2),
    "digits": lambda n: "a: " + "1_" * (n // 2 - 2),
    "marks": lambda n: "%" * n,
}


@pytest.mark.parametrize("shape", YAML)
def test_the_largest_configurations_of_any_shape_are_read_at_once(
    tmp_path: Path, shape: str
) -> None:
    """Of 64 KiB: to read them, or to refuse them, takes seconds and not more."""
    (tmp_path / "x.yaml").write_text(YAML[shape](files.LARGEST))
    assert files.LARGEST / 2 < (tmp_path / "x.yaml").stat().st_size <= files.LARGEST
    with at_once():
        try:
            read_config_file(str(tmp_path / "x.yaml"))
        except ConfigError as error:
            assert "\n" not in str(error) and len(str(error)) < 600  # noqa: PT017


@pytest.mark.parametrize("verb", ["config", "fit", "compare", "tune", "space"])
@pytest.mark.parametrize("shape", ["lists", "merges", "alias"])
def test_a_larger_one_is_refused_unread_at_every_door(
    command: Command, kept: Path, verb: str, shape: str
) -> None:
    text = "a: &a [x]\nb: [*a]\n" + "#" * LEVELS if shape == "alias" else YAML[shape](LEVELS)
    (kept / "x.yaml").write_text(text)
    words: list[object] = [verb, "--data", kept / "data", "--out", kept / "new"]
    if verb == "config":
        words = ["config", "show"]
    elif verb == "compare":
        words += ["--routers", "topk"]
    elif verb != "fit":
        words += ["--router", "topk", "--trials", "1"]
    words[0] = "tune" if verb == "space" else words[0]
    option = "--space" if verb == "space" else "--config"
    fails(command, 2, "must have at most 65536 bytes", *words, option, kept / "x.yaml")


def test_a_merge_key_names_no_other_part_of_the_file(command: Command, tmp_path: Path) -> None:
    """Only an alias could, and `<<` alone merges what stands right there."""
    (tmp_path / "x.yaml").write_text("model: &m {num_experts: 4}\noptim:\n  <<: *m\n")
    message = command.fails(2, "config", "show", "--config", tmp_path / "x.yaml")
    assert "aliases (*name) are not accepted" in message
