"""doctor: what it says is so, what is broken is named, and nobody is given away."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib
import pyarrow.parquet as pq
import pytest
import torch

from recsys_moe import machine
from recsys_moe.cli import app
from recsys_moe.cli.doctor import _text
from recsys_moe.lab import doctor
from recsys_moe.lab.doctor import EXTRAS, NEEDED, Report, examine
from recsys_moe.machine import cores
from tests.conftest import tells

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {match.group() for match in found if match}


def test_packages_and_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(NEEDED) == names(project["dependencies"])
    extras = project["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"dev", "docs"}
    for name, packages in EXTRAS.items():
        # httptools: `serve` is slower without it, and works
        assert set(packages) == names(extras[name]) - {"httptools"}, name


def call(*args: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recsys_moe.cli", "doctor", *map(str, args)],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )  # fmt: skip


@pytest.mark.slow
def test_a_working_installation_is_reported_with_exit_code_0_and_without_names(
    prepared: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home-of-jo"
    shutil.copytree(prepared, home / "secret-client" / "movies")
    result = call(
        "--json", "--data", home / "secret-client" / "movies",
        HOME=str(home), USER="jo-smith", LOGNAME="jo-smith", API_KEY="hunter2",
        OMP_NUM_THREADS="1", MPLCONFIGDIR=matplotlib.get_cachedir(),
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report["facts"]["versions"]["torch"] == version("torch")  # `__version__` has a build
    assert report["facts"]["threads"]["OMP_NUM_THREADS"] == 1
    assert report["facts"]["threads"]["torch"] == 1
    assert report["facts"]["data"]["users"] == 60
    hidden = [
        "jo-smith",
        "secret-client",
        "movies",
        "home-of-jo",
        "hunter2",
        str(tmp_path),
        sys.prefix,
    ]
    assert [word for word in hidden if word in result.stdout] == []
    assert re.findall(rf"\b{re.escape(platform.node())}\b", result.stdout) == []


@pytest.mark.slow
def test_a_needed_package_that_is_broken_ends_with_1_and_the_rest_is_reported(
    tmp_path: Path,
) -> None:
    (tmp_path / "torch.py").write_text(f"raise OSError('{tmp_path}/libx.so: cannot open')")
    result = call(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert result.returncode == 1, result.stderr
    problems = [line for line in result.stdout.splitlines() if line.startswith("problem: ")]
    assert tells(problems[0], "problem: torch ... OSError ... `import torch`")
    assert "python" in result.stdout and str(tmp_path) not in result.stdout + result.stderr


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Packages are imported in the tests that start a process; here that would take seconds."""
    monkeypatch.setattr(doctor, "NEEDED", {"torch": "torch"})
    for name in doctor.THREADS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("value", "warning"),
    [
        (str(cores() + 1), f"OMP_NUM_THREADS={cores() + 1} is more than the {cores()} usable"),
        ("my password", "OMP_NUM_THREADS must be a number"),
        ("0", "OMP_NUM_THREADS must be a number"),
    ],
)
def test_a_thread_variable_that_does_harm_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, value: str, warning: str
) -> None:
    assert not [text for text in examine().warnings if "OMP" in text]
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    report = examine()
    assert [text for text in report.warnings if text.startswith(warning)]
    assert report.exit_code == 0 and "password" not in str(report)


def test_little_room_and_few_cores_are_warnings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text(f"{3 * 2**29}\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(doctor, "LOW_DISK", 2**60)
    monkeypatch.setattr(doctor, "LOW_MEMORY", 2**60)
    monkeypatch.setattr(machine, "memory", lambda: {"total": 2**31, "available": 2**28})
    report = examine()
    said = " ".join(report.warnings)
    assert "of disk is free" in said and "only 0.2 GiB of memory is free" in said
    assert tells(said, f"0.5 of {cores()} cores ... OMP_NUM_THREADS=1")
    assert report.facts["resources"]["memory limit"] == "1.5 GiB"
    assert report.facts["resources"]["core limit"] == 0.5  # 50 ms of each 100 ms


def test_a_missing_compiler_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert [text for text in examine().warnings if text.startswith("no C++ compiler")]


def test_a_missing_extra_comes_with_the_line_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "tune", ("optuna", "not-there-at-all"))
    extra = examine().facts["extras"]["tune"]
    assert extra["missing"] == ["not-there-at-all"] and "optuna" in extra["present"]
    assert extra["install"] == 'pip install "recsys-moe[tune]"'


def test_a_gpu_that_fails_is_a_warning_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError(f"driver too old, see {Path.home()}/x/log.txt")

    monkeypatch.setattr(torch.cuda, "is_available", broken)
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", Path("/nowhere"))
    report = examine()
    (said,) = (text for text in report.warnings if text.startswith("devices: "))
    assert said.startswith("devices: RuntimeError; ")
    assert str(Path.home()) not in str(report)
    assert report.exit_code == 0


def test_a_gpu_has_its_name_memory_and_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Properties:
        name, total_memory, major, minor = "H200", 141 * 2**30, 9, 0

    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\n"
    )
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: Properties)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    (gpu,) = machine.accelerators()
    assert (gpu["name"], gpu["memory"], gpu["driver"]) == ("H200", "141.0 GiB", "560.35.03")


def edited(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "schema.json").read_text())
    (folder / "schema.json").write_text(json.dumps({**raw, **changes}))


def rows_missing(folder: Path) -> None:
    (part,) = (folder / "val").glob("*.parquet")
    pq.write_table(pq.read_table(part).slice(1), part)


def users_missing(folder: Path) -> None:
    pq.write_table(pq.read_table(folder / "users.parquet").slice(1), folder / "users.parquet")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "schema.json").unlink(), "no schema.json"),
        (lambda folder: edited(folder, format_version=9), "format_version ... got 9"),
        (rows_missing, "224 rows, schema.json ... 225"),
        (users_missing, "users.parquet ... 60 rows, got 59"),
    ],
)
def test_spoilt_data_are_named_and_end_with_3(
    prepared: Path, tmp_path: Path, spoil: Any, message: str
) -> None:
    folder = tmp_path / "movies"
    shutil.copytree(prepared, folder)
    assert examine(folder).exit_code == 0
    spoil(folder)
    report = examine(folder)
    assert report.exit_code == 3 and len(report.invalid) == 1
    assert report.invalid[0].startswith("--data ") and tells(report.invalid[0], message)
    assert str(tmp_path) not in report.invalid[0]


def test_a_run_is_checked_and_so_is_whether_the_data_are_its_own(
    prepared: Path, run: Path, tmp_path: Path
) -> None:
    report = examine(prepared, run)
    assert report.exit_code == 0 and report.facts["model"]["experts"] == 4
    shutil.copytree(prepared, tmp_path / "other")
    edited(tmp_path / "other", command="another")
    for trained in (run, run / "model"):
        assert examine(prepared, trained).facts["data"]["files"] == "those of the run"
        report = examine(tmp_path / "other", trained)
        assert report.exit_code == 3 and "schema.json differ" in report.invalid[0]
    shutil.copytree(run / "model", tmp_path / "model")
    report = examine(prepared, tmp_path / "model")
    assert report.exit_code == 0 and report.facts["data"]["files"].startswith("not compared: ")
    (tmp_path / "model" / "card.json").write_text("{}")
    assert "card.json was truncated or edited" in examine(None, tmp_path / "model").invalid[0]


@pytest.mark.parametrize("relative", [True, False])
def test_no_folder_is_named_however_it_is_called(
    prepared: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    secret = Path("Secret Customer (ACME) a=b;  it's") if relative else tmp_path / "Big, (ACME) x"
    shutil.copytree(prepared, secret / "my movies")
    shutil.copytree(run / "model", secret / "my model")
    report = examine(secret / "my movies", secret / "my model")
    assert report.exit_code == 0 and Path.cwd() == tmp_path
    (secret / "my model" / "card.json").write_text("{}")
    spoilt = examine(secret / "none here", secret / "my model")
    assert spoilt.exit_code == 3 and len(spoilt.invalid) == 2
    assert tells(spoilt.invalid[0], "--data ... folder")
    assert "card.json" in spoilt.invalid[1]
    for word in ("Secret", "Customer", "Big", "ACME", "it's", "none here", "my m", str(tmp_path)):
        assert word not in str(report) + str(spoilt), word


def test_a_broken_installation_counts_more_than_invalid_data() -> None:
    assert Report(warnings=["w"]).exit_code == 0
    assert Report(invalid=["i"]).exit_code == 3
    assert Report(problems=["p"], invalid=["i"]).exit_code == 1


def test_the_plain_report_has_a_line_per_fact(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["doctor"], standalone_mode=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "devices" in lines and lines[-1] == "no problems found"
    assert [line for line in lines if re.match(rf"  usable cores +{cores()}$", line)]


def test_one_thread_is_a_number_and_no_yes() -> None:
    words = [_text(value) for value in (1, 1.0, 0, True, False, None, "x", {"a": 1, "b": []}, [1])]
    assert words == ["1", "1.0", "0", "yes", "no", "-", "x", "a 1", "1"]


@pytest.mark.parametrize(
    ("processor", "says", "is_fast"),
    [
        ("x86_64", {"_is_avx512_bf16_supported": True, "_is_amx_tile_supported": False}, True),
        ("AMD64", {"_is_avx512_bf16_supported": False, "_is_amx_tile_supported": True}, True),
        ("x86_64", {"_is_avx512_bf16_supported": False, "_is_amx_tile_supported": False}, False),
        ("x86_64", {}, False),  # an older torch
    ],
)
def test_bfloat16_is_fast_on_x86_where_the_processor_multiplies_it(
    processor: str, says: dict[str, bool], is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What oneDNN says, which may be by conversion, does not count there; elsewhere it does."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    for name, value in says.items():
        monkeypatch.setattr(torch.cpu, name, lambda value=value: value, raising=False)
    monkeypatch.setattr(machine.platform, "machine", lambda: processor)
    assert machine.has_fast_bf16() == is_fast
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")
    assert machine.has_fast_bf16() == torch.ops.mkldnn._is_mkldnn_bf16_supported()
