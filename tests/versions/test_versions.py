"""What the script of versions makes of uv's and pytest's answers; it installs nothing here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.versions import versions
from tests.versions.versions import Failed, Row, counts, for_this_machine, table, tried

XML = """<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="10"
 time="4.2"><testcase/></testsuite></testsuites>"""
PINS = "numpy==2.4.6\nnvidia-cublas==13.1\ntorch==2.13.0\ntorchmetrics==1.9.0\ntriton==3.7.1\n"


def test_errors_are_failures_and_what_was_skipped_has_not_passed() -> None:
    assert counts(XML) == (10 - 1 - 2 - 3, 1 + 2, 3)


def test_a_build_of_torch_for_cuda_is_left_out_with_all_that_needs_it() -> None:
    assert for_this_machine(PINS, cuda=False) == ("numpy==2.4.6\n", None)


def test_a_build_for_cuda_is_tried_where_the_gigabytes_are_asked_for() -> None:
    assert for_this_machine(PINS, cuda=True) == (PINS, "2.13.0")


def test_a_build_of_torch_for_processors_stays() -> None:
    pins = "numpy==2.4.6\ntorch==2.13.0+cpu\n"
    assert for_this_machine(pins, cuda=False) == (pins, "2.13.0+cpu")


def test_the_table_has_a_line_per_environment_and_says_why_there_is_none() -> None:
    rows = [
        Row("3.11", "pinned", "2.13.0", passed=9, failed=1, skipped=2, seconds=70),
        Row("3.14", "pinned", remark="not tried: error: No interpreter found"),
    ]
    assert table(rows).splitlines()[2:] == [
        "| 3.11 | pinned | 2.13.0 | 9 | 1 | 2 | 70 |  |",
        "| 3.14 | pinned | - | 0 | 0 | 0 | 0 | not tried: error: No interpreter found |",
    ]


def test_what_cannot_be_had_is_a_row_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Failed("error: no such Python")

    monkeypatch.setattr(versions, "uv", refuse)
    chosen = versions.parser().parse_args([])
    row = tried("3.14", "pinned", tmp_path, chosen)
    assert row == Row("3.14", "pinned", remark="not tried: error: no such Python")


def test_every_python_of_the_package_is_tried() -> None:
    named = re.findall(
        r"Python :: (3\.\d+)", (versions.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert tuple(named) == versions.PYTHONS


@pytest.mark.parametrize("name", versions.BASICS)
def test_what_is_run_is_there(name: str) -> None:
    path, _, test = name.partition("::")
    assert (versions.ROOT / path).exists()
    assert not test or f"def {test}(" in (versions.ROOT / path).read_text(encoding="utf-8")
