"""The wheel holds what it must, the pins cover the requirements, the README's targets exist."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
TARGET = re.compile(r"^([a-z][\w-]*):", re.MULTILINE)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in a wheel built from this checkout, without a network."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    result = subprocess.run([*command, str(ROOT)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = out.glob("recsys_moe-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def tracked(folder: str, pattern: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob(pattern)}


def test_wheel_holds_both_packages_whole(wheel_files: list[str]) -> None:
    modules = tracked("recsys_moe", "*.py") | tracked("data_prep", "*.py")
    page = tracked("recsys_moe/serve/static", "*.*")
    assert modules and page and modules | page <= set(wheel_files)
    assert {"recsys_moe/py.typed", "data_prep/py.typed"} <= set(wheel_files)


def test_wheel_holds_every_configuration(wheel_files: list[str]) -> None:
    configs = {f"recsys_moe/{name}" for name in tracked("configs", "*.yaml")}
    assert configs, "configs/ holds no *.yaml"
    assert configs <= set(wheel_files)


def test_wheel_leaves_out_evidence_benchmarks_and_tests(
    wheel_files: list[str],
) -> None:
    tops = {name.split("/")[0] for name in wheel_files}
    extra = {top for top in tops - {"recsys_moe", "data_prep"} if not top.endswith(".dist-info")}
    assert extra == set()
    assert not [name for name in wheel_files if re.search(r"(^|_)tests?(_|\.|$)", Path(name).name)]


def test_data_prep_init_is_empty() -> None:
    """Its import name is generic: another package's file in its place must not break ours."""
    assert (ROOT / "data_prep" / "__init__.py").read_bytes() == b""


def canonical(requirement: str) -> str:
    """`PyYAML>=6,<7; marker` -> `pyyaml`"""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def pins() -> dict[str, list[str]]:
    """Name -> its lines in constraints.txt."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            found.setdefault(canonical(line), []).append(line)
    return found


def test_every_requirement_is_pinned(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"].values()
    lists = [project["build-system"]["requires"], project["project"]["dependencies"], *extras]
    required = {canonical(requirement) for requirements in lists for requirement in requirements}
    assert required - pins().keys() == set()


def test_every_pin_is_exact_and_of_one_python_only() -> None:
    exact = re.compile(r"^[A-Za-z0-9._-]+==[\w.!+]+(; [^;]+)?$")
    for name, lines in pins().items():
        assert [line for line in lines if not exact.match(line)] == []
        assert len(lines) == 1 or all("; " in line for line in lines), f"{name} is pinned twice"


def test_constraints_name_no_host_and_no_path() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert re.findall(r"://|file:|(?:^|\s)/\w", text, re.MULTILINE) == []


def make_targets(text: str) -> set[str]:
    return set(TARGET.findall(text))


def documented_targets(text: str) -> set[str]:
    """Targets named in the code of a Markdown text: between backticks, fenced or indented."""
    fenced = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^(?: {4}|\t).*$", text, re.MULTILINE)
    inline = re.findall(r"`[^`\n]+`", text)
    lines = "\n".join([*fenced, *indented, *inline])
    return set(re.findall(r"(?:^|[`$;&\s])make ((?!\w+=)[a-z][\w-]*)", lines, re.MULTILINE))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_documents_name_only_make_targets_that_exist(name: str) -> None:
    targets = make_targets((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert documented_targets((ROOT / name).read_text(encoding="utf-8")) <= targets


def test_every_make_target_is_in_its_help() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    help_text = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert {line.split()[1] for line in help_text.splitlines()} == make_targets(text)
