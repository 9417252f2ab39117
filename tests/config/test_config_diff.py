"""config diff: exactly the keys whose resolved values differ, whatever the two sides are."""

from __future__ import annotations

import json
import os
import pty
import select
import sys
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys_moe.cli import app, main
from recsys_moe.config.diff import differences, flat, read_resolved, shown
from recsys_moe.config.files import configs_folder, merge
from tests.conftest import tells

SHIPPED = sorted(path.stem for path in configs_folder().glob("*.yaml"))
VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())
SECTIONS = st.recursive(
    st.dictionaries(st.sampled_from("abc"), VALUES),
    lambda inner: st.dictionaries(st.sampled_from("abc"), VALUES | inner),
    max_leaves=8,
)


@settings(max_examples=40)
@given(SECTIONS, SECTIONS)
def test_differences_are_the_keys_that_differ_and_turn_around_with_the_sides(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    found, old, new = differences(a, b), dict(flat(a)), dict(flat(b))
    assert differences(a, a) == {}
    assert set(found) == {k for k in old.keys() | new.keys() if old.get(k, ...) != new.get(k, ...)}
    turned = {"a": "b", "b": "a"}
    assert differences(b, a) == {
        key: {turned[side]: value for side, value in sides.items()} for key, sides in found.items()
    }


def diff(*args: str) -> Any:
    return app(["config", "diff", *args], standalone_mode=False)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two files that differ in the learning rate and in the router."""
    one = {"optim": {"lr": 0.002}, "model": {"num_experts": 8}, "tasks": {"watch": {"weight": 1}}}
    two = merge(one, {"optim": {"lr": 1e-8}, "model": {"router": "topk"}})
    for name, raw in (("a.yaml", one), ("b.yaml", two)):
        (tmp_path / name).write_text(yaml.safe_dump(raw))
    return str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")


def test_each_difference_is_one_line_and_the_rest_is_not_printed(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert diff(*files) is None
    lines = capsys.readouterr().out.splitlines()
    assert "optim.lr: 0.002 -> 1e-08" in lines
    assert "model.router.name: moesart -> topk" in lines
    assert not [line for line in lines if line.startswith(("model.num_experts", "tasks."))]
    assert all(line.count(" -> ") == 1 and "\x1b" not in line for line in lines)


def test_a_key_that_only_one_router_has_is_absent_in_text_and_json(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    diff(*files)
    lines = capsys.readouterr().out.splitlines()
    a, b = (read_resolved(file)["model"]["router"] for file in files)
    for key in a.keys() - b.keys():
        assert f"model.router.{key}: {shown({'a': a[key]}, 'a')} -> (none)" in lines
    for key in b.keys() - a.keys():
        assert f"model.router.{key}: (none) -> {shown({'b': b[key]}, 'b')}" in lines
    assert a.keys() != b.keys()
    assert diff(*files, "--json", "--exit-code") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["differences"]["optim.lr"]) == (False, {"a": 0.002, "b": 1e-08})
    assert any(set(sides) == {"a"} for sides in found["differences"].values())


def test_a_run_its_model_a_file_and_a_name_are_sides_and_defaults_are_no_differences(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "full.yaml").write_text(yaml.safe_dump(read_resolved(str(tmp_path / "empty.yaml"))))
    equal = [
        (run, run / "model"),
        (run, run / "config.yaml"),
        (f"{tmp_path}/empty.yaml", f"{tmp_path}/full.yaml"),
    ]
    equal += [(name, configs_folder() / f"{name}.yaml") for name in SHIPPED]
    for sides in equal:
        assert diff(*map(str, sides), "--exit-code") is None
        assert capsys.readouterr().out == "no differences\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "nowhere.yaml: no such file"),
        ("optim: {lrr: 1}", "optim: ... 'lrr' ... 'lr'"),
        ("a: [", "is not valid YAML"),
        ("- 1", "must hold a mapping"),
        ("folder", "has no config.yaml"),
    ],
)
def test_what_is_no_configuration_is_named_in_one_line_with_exit_code_2(
    text: str | None, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    bad = tmp_path / ("nowhere.yaml" if text is None else "bad.yaml")
    if text == "folder":
        bad.mkdir()
    elif text is not None:
        bad.write_text(text)
    for sides in ([str(bad), SHIPPED[0]], [SHIPPED[0], str(bad)]):
        monkeypatch.setattr(sys, "argv", ["recsys-moe", "config", "diff", *sides])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        (line,) = (line for line in err.splitlines() if line.startswith("error: "))
        assert (caught.value.code, out) == (2, "") and tells(line, message) and bad.name in line


def test_colour_is_for_a_terminal(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream, os.fdopen(controller, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stdout", stream)
        diff(*files)
        stream.flush()
        said = read_until(screen, b"1e-08\x1b[0m")
    assert b"\x1b[31m0.002\x1b[0m -> \x1b[32m1e-08\x1b[0m" in said


def read_until(screen: FileIO, end: bytes) -> bytes:
    """A terminal hands over what it has so far: one read need not be all that was written."""
    said = b""
    while end not in said and select.select([screen], [], [], 30)[0]:
        said += screen.read(4096)
    return said
