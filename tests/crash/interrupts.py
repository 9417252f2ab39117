"""Send SIGINT or SIGTERM to commands at moments of their first seconds, and see how they end.

Each must end with 130 or 143 (or 0, where it was done before), with one line that says so as the
last of stderr, before it nothing but logs of its work, and nothing half-written.

    python tests/crash/interrupts.py --moments 14

Prints a line per command, and as the last line a JSON object; exit code 1 when one ends otherwise.
Linux: /proc says from when on a process listens to signals. What comes earlier meets Python alone.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

COMMANDS = ("prepare", "fit", "evaluate", "predict", "recommend", "serve", "export", "report")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS = 120.0
"""No command takes longer; one that does hangs."""
ENDS = re.compile(r"error: interrupted(; .*)?")
LOGS = re.compile(
    r"loading .*|[\d,]+ rows .*|wrote .*|epoch \d.*|stopping after this step.*|serving model .*"
    r"|drawing .*|export: .*|\w+: [\d,]+ rows|warning: .*"
)
"""What commands say of their work."""
SMALL = ("model.embedding_dim=8", "model.expert_dim=16", "model.tower_dims=[8]")
START = [sys.executable, "-m", "recsys_moe"]


def words(command: str, folder: Path, out: Path) -> list[str]:
    """Of a command that writes nothing but `out`; `folder` has data and a run."""
    run, given = str(folder / "run"), ["--out", str(out)]
    sets = [word for setting in SMALL for word in ("--set", setting)]
    return {
        "prepare": ["prepare", "synthetic", *given],
        "fit": ["fit", "--data", str(folder / "data"), *given, "--max-epochs", "200", *sets],
        "evaluate": ["evaluate", run],
        "predict": ["predict", run, "--input", f"{folder}/pairs.csv", "--output", f"{out}.csv"],
        "recommend": ["recommend", run, "--user", "1"],
        "serve": ["serve", run, "--port", "0"],
        "export": ["export", run, *given, "--format", "pt2"],
        "report": ["report", run, *given],
    }[command]


def make(folder: Path) -> None:
    """Data, a run and pairs to score."""
    data, run = folder / "data", folder / "run"
    sizes = ["--users", "60", "--items", "40", "--interactions", "1000"]
    fit = words("fit", folder, run)
    fit[fit.index("--max-epochs") + 1] = "1"
    for line in (["prepare", "synthetic", "--out", str(data), *sizes], fit):
        subprocess.run([*START, *line], check=True, capture_output=True)
    rows = "".join(f"{row % 60 + 1},{row % 40 + 1}\n" for row in range(200_000))
    (folder / "pairs.csv").write_text("user,item\n" + rows)


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
    line = [*START, *words(command, folder, out)]
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


def survey(command: str, folder: Path, moments: Sequence[float]) -> int:
    """Over all moments and both signals: how many ended otherwise; each is printed."""
    wrong = 0
    for place, moment in enumerate(moments):
        number, base = SIGNALS[place % 2], Path(tempfile.mkdtemp(dir=folder))
        code, lines = one(command, folder, base / "out", moment, number)
        left = [path.name for path in base.iterdir() if path.name not in ("out", "out.csv")]
        found = fault(code, lines, number, left)
        wrong += bool(found)
        if found:
            print(f"{command}, {number.name} after {moment:.2f} s: {found}", *lines, sep="\n    ")
        shutil.rmtree(base)
    print(f"{command}: {len(moments) - wrong} of {len(moments)} end as they should", flush=True)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20, help="of each command")
    parser.add_argument("--seconds", type=float, default=4.0, help="over which they are spread")
    parser.add_argument("--command", action="append", choices=COMMANDS)
    asked = parser.parse_args()
    moments = [asked.seconds * n / asked.moments for n in range(asked.moments)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        commands = asked.command or COMMANDS
        wrong = sum(survey(command, folder, moments) for command in commands)
    print(json.dumps({"moments": len(moments) * len(commands), "wrong": wrong}))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
