"""What goes wrong outside of us: memory, disks, modules of the user's own, readers that go away."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from recsys_moe import files
from recsys_moe.cli.faults import explained
from recsys_moe.cli.training import _memory_of
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from tests.conftest import TINY_MODEL, Command, tells

ROOT = Path(__file__).parents[2]
MODEL = ["--set", f"model={json.dumps(TINY_MODEL)}"]
ROUTER = """
from recsys_moe.routers import Router, RouterConfig

class Mine(Router):
    class Config(RouterConfig):
        name: str = "outside:Mine"

    summary = "it fails"

    def forward(self, x_BD, user_B=None):
        return {}["weights"]
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory like this")
def test_memory_that_a_setting_asks_for_is_named_by_it(prepared: Path, tmp_path: Path) -> None:
    words = ["fit", "--data", prepared, "--out", tmp_path / "run", "--set"]
    done = subprocess.run(
        [sys.executable, "-m", "recsys_moe", *map(str, words), "model.embedding_dim=1000000000"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33)),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    wanted = "error: out of memory with model.embedding_dim=1000000000 (default "
    assert done.stderr.splitlines()[-1].startswith(wanted)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", [2**63 - 1, 2**63])
def test_sizes_beyond_all_memory_are_named_too(
    command: Command, prepared: Path, tmp_path: Path, size: int
) -> None:
    words = ["fit", "--data", prepared, "--out", tmp_path / "run", "--dry-run", "--experts", size]
    assert f"out of memory with model.num_experts={size} (default 16)" in command.fails(2, *words)


def test_where_all_sizes_are_the_defaults_that_of_every_user_and_item_is_named() -> None:
    said = "out of memory with model.embedding_dim=128"
    with pytest.raises(ConfigError, match=said), _memory_of(parse_config({})):
        raise MemoryError
    large = parse_config({"data": {"eval_batch_size": 2**20}})
    said = "out of memory with data.eval_batch_size=1048576"
    with pytest.raises(ConfigError, match=said), _memory_of(large):
        raise RuntimeError("can't allocate memory")


def test_a_fault_in_a_module_from_outside_names_its_file_and_line(
    command: Command, prepared: Path, tmp_path: Path
) -> None:
    (tmp_path / "outsider.py").write_text(ROUTER)
    (tmp_path / "faulty.py").write_text(
        "def prepare(source, out, *, seed, force):\n    return 1 / 0\n"
    )
    (tmp_path / "no_python.py").write_text("x = 1\ndef (\n")
    command.monkeypatch.syspath_prepend(tmp_path)
    out = ["--out", tmp_path / "out"]
    for words, line in (
        (
            ["prepare", "module", "faulty", "--source", "x", *out],
            "faulty.py:2: ZeroDivisionError",
        ),
        (["prepare", "module", "no_python", "--source", "x", *out], "no_python.py:2: SyntaxError"),
        (
            ["fit", "--data", prepared, *out, *MODEL, "--router", "outsider:Mine"],
            "outsider.py:11: KeyError: 'weights'",
        ),
    ):
        message = command.fails(1, *words)
        assert (
            f"error: {tmp_path}/{line}" in message and "in a module outside recsys-moe" in message
        )


def test_a_fault_of_ours_says_so(command: Command, prepared: Path) -> None:
    def fault(*unused: object, **options: object) -> None:
        raise KeyError("one of ours")

    fault.__globals__["__name__"], before = "recsys_moe.config", __name__
    try:
        command.monkeypatch.setattr("recsys_moe.config.files.read_config_file", fault)
        message = command.fails(1, "config", "show", "--config", "quickstart")
    finally:
        fault.__globals__["__name__"] = before
    assert "KeyError: 'one of ours' (a bug in recsys-moe" in message


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        ("/home/me/.local/lib/python3.11/site-packages/typer/main.py", "a bug in recsys-moe"),
        ("/usr/lib/python3/dist-packages/typer/main.py", "a bug in recsys-moe"),
        ("/home/me/mine/main.py", "in a module outside recsys-moe"),
    ],
)
def test_a_library_is_none_of_the_users_modules_wherever_it_is_installed(
    file: str, whose: str
) -> None:
    with pytest.raises(KeyError) as caught:
        exec(compile("raise KeyError(1)", file, "exec"), {"__name__": "typer.main"})
    caught.value.__traceback__ = caught.tb.tb_next
    assert f"({whose}; " in explained(caught.value)


def test_a_folder_that_fills_the_disk_is_named(
    command: Command, run: Path, prepared: Path, tmp_path: Path
) -> None:
    def full(*unused: object, **too: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    command.monkeypatch.setattr("recsys_moe.lab.report.build._write_figure", full)
    command.monkeypatch.setattr("data_prep.write.writer.write_parts", full)
    command.monkeypatch.setattr("recsys_moe.artifact.export.save_artifact", full)
    for words in (["report", run], ["export", run], ["prepare", "synthetic"]):
        message = command.fails(1, *words, "--out", out)
        assert f"{out}: No space left on device" in message
    assert not any(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_2_for_every_command(
    command: Command, run: Path, prepared: Path, tmp_path: Path
) -> None:
    (tmp_path / "pairs.csv").write_text("user,item\n1,1\n")
    out = tmp_path / "pairs.csv" / "out.csv"
    for words in (
        ["prepare", "synthetic", "--out"],
        ["fit", "--data", prepared, "--out"],
        ["export", run, "--out"],
        ["report", run, "--out"],
        ["compare", "--data", prepared, "--routers", "topk", "--out"],
        ["tune", "--data", prepared, "--router", "topk", "--trials", 1, "--out"],
        ["predict", run, "--input", tmp_path / "pairs.csv", "--output"],
        ["recommend", run, "--users", tmp_path / "pairs.csv", "--output"],
    ):
        message = command.fails(2, *words, out)
        assert str(out) in message and "folder" in message


def test_a_read_only_folder_is_no_place_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(ConfigError, match="--out .*read-only"):
        files.check_place(tmp_path / "new" / "out")
    with pytest.raises(ConfigError, match="--output .*read-only"):
        files.check_output(tmp_path / "new.csv", overwrite=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "--no-such"], "--no-such ... recsys-moe fit --help"),
        (["fit"], "'--data' ... recsys-moe fit --help"),
        (["fitt"], "'fitt' ... 'fit' ... recsys-moe --help"),
        (["fit", "--k", "x"], "--k ... got 'x' ... recsys-moe fit --help"),
        (["recommend", "x", "--k", "-3"], "--k ... 1, got '-3' ... recsys-moe recommend --help"),
    ],
)
def test_a_usage_error_is_one_line(command: Command, words: list[str], message: str) -> None:
    assert tells(command.fails(2, *words), message)


def test_help_lists_commands_in_the_order_of_their_use_and_flags_without_a_value(
    command: Command,
) -> None:
    lines = command("-h").out.splitlines()
    at = {name: n for n, line in enumerate(lines) for name in line.split()[1:2]}
    used = ("prepare", "fit", "evaluate", "predict", "recommend", "serve", "compare", "doctor")
    assert sorted(used, key=at.__getitem__) == list(used)
    for words in (["fit"], ["config", "diff"], ["prepare", "table"], []):
        shown = command(*words, "--help").out
        assert "bool" not in shown and "--help" in shown and "-h" in shown


def test_weights_of_fit_are_those_of_compare(
    command: Command, prepared: Path, tmp_path: Path
) -> None:
    fit = ["fit", "--data", prepared, "--out", tmp_path / "run", "--max-epochs", 1]
    assert command(*fit, *MODEL, "--weights", "0.25,0.75").exit_code == 0
    tasks = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["tasks"]
    assert [tasks[name]["weight"] for name in ("watch", "rating")] == [0.25, 0.75]
    assert "--weights" in command.fails(2, *fit, "--weights", "0.25")
