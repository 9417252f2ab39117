"""Requests per second and latency of `recsys-moe serve` beside a bare FastAPI echo.

    python benchmarks/serving.py RUN [--seconds N] [--rounds N]

Needs wrk on the PATH. Server, echo and wrk share the machine; each round measures the echo and the
service in turn, so the ratios travel between machines and the milliseconds do not. Both run in the
same uvicorn with the same loop and parser. A table, then one JSON line. `soak.py` runs for minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

ECHO = """
from fastapi import FastAPI
from pydantic import BaseModel
app = FastAPI()
class Body(BaseModel):
    users: list[int | str]
    items: list[int | str]
@app.post("/echo")
async def echo(body: Body) -> Body:
    return body
"""
SAME = (
    *("--no-access-log", "--no-server-header", "--no-proxy-headers", "--lifespan", "off"),
    *("--ws", "none", "--log-level", "warning"),
)
"""What `recsys-moe serve` asks of uvicorn."""
SCRIPT = """
wrk.method = "POST"; wrk.headers["Content-Type"] = "application/json"
local n = 0
request = function() n = n % 6000 + 1; return wrk.format(nil, nil, nil, BODY) end
"""
PAIR = """'{"users":[' .. n .. '],"items":[' .. n % 3000 + 1 .. ']}'"""
HUNDRED = json.dumps({"users": list(range(1, 101)), "items": list(range(1, 101))})
CASES = {
    "echo, 1 row": ("echo", PAIR),
    "predict, 1 row": ("predict", PAIR),
    "echo, 100 rows": ("echo", f"'{HUNDRED}'"),
    "predict, 100 rows": ("predict", f"'{HUNDRED}'"),
    "recommend, k=10": ("recommend", """'{"users":[' .. n .. '],"k":10}'"""),
}
MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
Measured = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32, 256])
    options = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("wrk is not on the PATH; on Debian: apt-get install wrk")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "echo.py").write_text(ECHO)
        server = ["recsys_moe.cli", "serve", str(options.run.resolve()), "--port", "8771"]
        serving = started(stack, [*server, "--watch", "0"], folder, 8771)
        echo = ["uvicorn", "echo:app", "--port", "8772", *SAME]
        echoing = started(stack, echo, folder, 8772)
        report(options, load(options, folder, {"echo": echoing}, serving))


def started(stack: ExitStack, module: list[str], folder: Path, port: int) -> int:
    """Process id of a server that answers on `port`."""
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", *module]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": root})
    stack.callback(process.wait)
    stack.callback(process.terminate)
    for _ in range(300):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json").close()
            return process.pid
        except OSError:
            time.sleep(0.2)
    sys.exit(f"no answer on port {port}")


def load(
    options: argparse.Namespace, folder: Path, echoes: dict[str, int], serving: int
) -> dict[tuple[int, str], list[Measured]]:
    """Rounds of all cases in turn, per concurrency."""
    rounds: dict[tuple[int, str], list[Measured]] = {}
    for concurrency in options.concurrency:
        for _ in range(options.rounds):
            for name, (path, body) in CASES.items():
                script = folder / "script.lua"
                script.write_text(SCRIPT.replace("BODY", body))
                pid = echoes.get(path, serving)
                url = f"http://127.0.0.1:{8772 if path in echoes else 8771}/{path}"
                row = measured(url, script, concurrency, seconds=options.seconds, pid=pid)
                rounds.setdefault((concurrency, name), []).append(row)
    return rounds


def measured(url: str, script: Path, concurrency: int, *, seconds: int, pid: int) -> Measured:
    """One run of wrk: rates, latencies in ms, CPU time of the server per request in us, errors."""
    command = ["wrk", "-t1", f"-c{concurrency}", f"-d{seconds}s", "--timeout", "20s", "--latency"]
    before = cpu_seconds(pid)
    text = subprocess.run([*command, "-s", script, url], capture_output=True, text=True).stdout
    used = cpu_seconds(pid) - before
    requests = max(1, int(re.findall(r"(\d+) requests in", text)[0]))
    wrong = re.findall(r"Non-2xx or 3xx responses: (\d+)", text)
    sockets = re.findall(r"Socket errors: (.*)", text)
    quantiles = re.findall(r"(50|99)%\s+([\d.]+)(us|ms|s)", text)
    latency = {f"p{q}": float(value) * MILLISECONDS[unit] for q, value, unit in quantiles}
    errors = sum(map(int, wrong)) + sum(map(int, re.findall(r"\d+", " ".join(sockets))))
    return {
        "rate": requests / seconds, "cpu_us": 1e6 * used / requests, "errors": errors, **latency
    }  # fmt: skip


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(options: argparse.Namespace, rounds: dict[tuple[int, str], list[Measured]]) -> None:
    columns = ("rate", "p50", "p99", "cpu_us", "errors")
    print(
        f"{'clients':>7} {'':20}" + "".join(f"{name:>10}" for name in columns) + f"{'of echo':>9}"
    )
    rows = []
    for (concurrency, name), runs in rounds.items():
        row = {column: statistics.median(run[column] for run in runs) for column in columns}
        row["errors"] = sum(run["errors"] for run in runs)
        echo = rounds[concurrency, name.replace("predict", "echo")] if "row" in name else []
        ratios = [run["rate"] / other["rate"] for run, other in zip(runs, echo, strict=False)]
        ratio = statistics.median(ratios) if ratios else None
        numbers = "".join(f"{row[column]:10.2f}" for column in columns)
        print(f"{concurrency:7} {name:20}{numbers}{'' if ratio is None else f'{ratio:.2f}':>9}")
        rows.append({"clients": concurrency, "case": name, **row, "of_echo": ratio})
    facts = {"cpus": os.cpu_count(), "rounds": options.rounds, "seconds": options.seconds}
    print(json.dumps({"benchmark": "serving", **facts, "rows": rows}))


def megabytes(pid: int) -> float:
    """Resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


if __name__ == "__main__":
    main()
