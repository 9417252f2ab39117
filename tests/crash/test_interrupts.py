"""SIGINT and SIGTERM at the moments of a command: one line, the exit code, nothing half-written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
NUMBERS = pytest.mark.parametrize("number", SIGNALS, ids=lambda n: n.name)
BEGIN = """
import os, signal, sys, time
from pathlib import Path
from recsys_moe.interrupts import listen, unwinding
listen()
number = signal.Signals(int(sys.argv[1]))
"""
SECONDS = 120.0
"""No command takes longer; one that does hangs."""
ENDS = re.compile(r"error: interrupted(; .*)?")
LOGS = re.compile(
    r"loading .*|[\d,]+ rows .*|wrote .*|epoch \d.*|stopping after this step.*|serving model .*"
    r"|drawing .*|export: .*|\w+: [\d,]+ rows|warning: .*"
)
"""What commands say of their work."""
COMMANDS = {
    "prepare": "prepare synthetic --out {out}",
    "fit": "fit --data {folder}/data --out {out} --max-epochs 200 --set model.expert_dim=16",
    "recommend": "recommend {folder}/run --user 1",
    "serve": "serve {folder}/run --port 0",
}


def wait_until_it_listens(process: subprocess.Popen[str]) -> None:
    """Python takes SIGINT as it starts; SIGTERM is what a command takes."""
    mask = 1 << (signal.SIGTERM - 1)
    while process.poll() is None:
        caught = re.search(
            r"^SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.M
        )
        if caught and int(caught[1], 16) & mask:
            return
        time.sleep(0.001)


def one(
    command: str, folder: Path, out: Path, moment: float, number: signal.Signals
) -> tuple[int, list[str]]:
    """Exit code and lines of stderr."""
    words = COMMANDS[command].format(folder=folder, out=out).split()
    line = [sys.executable, "-m", "recsys_moe", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=pipe, text=True) as process:
        wait_until_it_listens(process)
        time.sleep(moment)
        process.send_signal(number)
        try:
            _, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return 0, ["it hangs"]
    return process.returncode, err.splitlines()


def fault(code: int, lines: Sequence[str], number: signal.Signals, left: Sequence[str]) -> str:
    """What is wrong with the end of a command, or nothing. `left`: names beside its output."""
    *logs, last = lines or [""]
    if code == 0 and all(map(LOGS.fullmatch, lines)):
        return ""  # it was done
    if code != 128 + number:
        return f"exit code {code}"
    if not ENDS.fullmatch(last) or not all(map(LOGS.fullmatch, logs)):
        return "other lines than the one"
    return f"left {left}" if left else ""


def ends(code: str, number: signal.Signals, folder: Path) -> tuple[int, str]:
    """Exit code and stderr of a process that sends itself a signal."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    words = [sys.executable, "-c", BEGIN + code, str(int(number))]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("moment", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_while_libraries_load_is_one_line(
    command: str, moment: float, run: Path, prepared: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").symlink_to(prepared)
    (tmp_path / "run").symlink_to(run)
    (tmp_path / "new").mkdir()
    number = SIGNALS[moment == 0.3]
    code, lines = one(command, tmp_path, tmp_path / "new" / "out", moment, number)
    left = [path.name for path in (tmp_path / "new").iterdir() if path.name != "out"]
    assert fault(code, lines, number, left) == "", lines


@NUMBERS
def test_a_signal_ends_the_process_at_once_with_its_line(
    number: signal.Signals, tmp_path: Path
) -> None:
    swallowing = "try: os.kill(os.getpid(), number); time.sleep(9)\nexcept BaseException: pass"
    assert ends(swallowing, number, tmp_path) == (128 + number, "error: interrupted\n")


@NUMBERS
def test_what_is_half_written_is_put_away_first(number: signal.Signals, tmp_path: Path) -> None:
    writing = """
from recsys_moe.files import replacing
from recsys_moe.folders import replacing_folder
with replacing_folder(Path("out")) as folder, replacing(folder / "new") as stream:
    try:
        os.kill(os.getpid(), number)
        time.sleep(9)
    finally:
        os.kill(os.getpid(), number)  # as `timeout` does, to the process and to its group
        time.sleep(0.1)
        Path("put_away").touch()
"""
    assert ends(writing, number, tmp_path) == (128 + number, "")  # the line is `run`'s
    assert [path.name for path in tmp_path.iterdir()] == ["put_away"]


@NUMBERS
def test_an_import_is_finished_before_what_is_half_written_is_put_away(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time, sys\n"
        "try:\n    os.kill(os.getpid(), int(sys.argv[1]))\n    time.sleep(0.2)\n"
        "except BaseException:\n    print('broken', file=sys.stderr)\n"
        "open('imported', 'w').close()\n"
    )
    importing = "with unwinding():\n    import slow\n    time.sleep(9)\n"
    assert ends(importing, number, tmp_path) == (128 + number, "")
    assert (tmp_path / "imported").is_file()


@pytest.mark.parametrize("swallows", ["__del__", "except BaseException"])
def test_a_signal_that_was_swallowed_ends_the_process_all_the_same(
    swallows: str, tmp_path: Path
) -> None:
    code = {
        "__del__": "class A:\n    def __del__(self):\n        os.kill(os.getpid(), number)\n"
        "        time.sleep(0.1)\nwith unwinding():\n    A()\n    time.sleep(9)\n",
        "except BaseException": "with unwinding():\n    try: os.kill(os.getpid(), number)\n"
        "    except BaseException: pass\ntime.sleep(9)\n",
    }[swallows]
    begun = time.monotonic()
    found, said = ends(code, signal.SIGINT, tmp_path)
    assert found == 130 and "Traceback" not in said and "ignored" not in said
    assert time.monotonic() - begun < 8


@NUMBERS
def test_a_signal_that_is_ignored_stays_so(number: signal.Signals, tmp_path: Path) -> None:
    code = BEGIN.replace("listen()", "signal.signal(int(sys.argv[1]), signal.SIG_IGN)\nlisten()")
    words = [sys.executable, "-c", code + "os.kill(os.getpid(), number)", str(int(number))]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(words, env=env, timeout=60).returncode == 0
