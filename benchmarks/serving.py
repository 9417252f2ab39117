"""Requests per second and latency of `recsys-moe serve` beside a bare FastAPI echo.

    python benchmarks/serving.py RUN [--seconds N] [--rounds N]

Needs wrk on the PATH. Server, echo and wrk share the machine; each round measures the echo and the
service in turn, so the ratios travel between machines and the milliseconds do not. Both run in the
same uvicorn with the same loop and parser. `soak.py` runs for minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import common

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
done = function(all, us)
    local e = all.errors
    print(all.requests, us:percentile(50) / 1e3, us:percentile(99) / 1e3,
          e.connect + e.read + e.write + e.status + e.timeout)
end
"""
"""For wrk. Its last line: requests, the latency's quantiles in ms, errors."""
PAIR = """'{"users":[' .. n .. '],"items":[' .. n % 3000 + 1 .. ']}'"""
HUNDRED = json.dumps({"users": list(range(1, 101)), "items": list(range(1, 101))})
CASES = {
    "echo, 1 row": ("echo", PAIR),
    "predict, 1 row": ("predict", PAIR),
    "echo, 100 rows": ("echo", f"'{HUNDRED}'"),
    "predict, 100 rows": ("predict", f"'{HUNDRED}'"),
    "recommend, k=10": ("recommend", """'{"users":[' .. n .. '],"k":10}'"""),
}
COLUMNS = {
    "clients": "{clients}", "case": "{case}", "requests/s": "{rate:.0f}",
    "p50, ms": "{p50.median:.1f}", "p99, ms": "{p99.median:.1f}",
    "CPU per request, us": "{cpu_us.median:.0f}", "errors": "{errors:.0f}", "of echo": "{of_echo}",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=3, clock=False)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32, 256])
    options = common.parse(parser, argv)
    if not shutil.which("wrk"):
        sys.exit("wrk is not on the PATH; on Debian: apt-get install wrk")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "echo.py").write_text(ECHO)
        serving = served(stack, options.run, 8771)
        echo = started(stack, ["uvicorn", "echo:app", *SAME], 8772, folder)
        ports = {"echo": (8772, echo), "predict": (8771, serving), "recommend": (8771, serving)}
        found = [
            row for clients in options.concurrency for row in load(options, folder, ports, clients)
        ]
    common.table(COLUMNS, [{**row, "of_echo": f"{row['of_echo'] or '':.4}"} for row in found])
    common.report("serving", {"seconds": options.seconds, "rows": found})


def served(stack: ExitStack, run: Path, port: int, *words: str, **variables: str) -> int:
    """Process id of `recsys-moe serve` with these options and variables of the environment."""
    command = ["recsys_moe.cli", "serve", str(run.absolute()), "--watch", "0", *words]
    return started(stack, command, port, common.ROOT, **variables)


def started(stack: ExitStack, module: list[str], port: int, folder: Path, **variables: str) -> int:
    """Process id of a server that answers on `port`."""
    command = [sys.executable, "-m", *module, "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, env=common.environment(**variables))
    stack.callback(process.wait)
    stack.callback(process.terminate)
    for _ in range(1500):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json").close()
            return process.pid
        except OSError:
            time.sleep(0.2)
    sys.exit(f"no answer on port {port}")


def load(
    options: argparse.Namespace, folder: Path, ports: dict[str, tuple[int, int]], clients: int
) -> list[dict[str, Any]]:
    """All cases in turn; what each came to over the rounds, and its share of the echo's rate."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for _ in range(options.rounds):
        for name, (path, body) in CASES.items():
            script, (port, pid) = folder / "script.lua", ports[path]
            script.write_text(SCRIPT.replace("BODY", body))
            words = [f"-c{clients}", "-s", str(script), f"http://127.0.0.1:{port}/{path}"]
            runs[name].append(measured(words, options.seconds, pid))
    rates = {name: [run["rate"] for run in some] for name, some in runs.items()}
    found: list[dict[str, Any]] = []
    for name, some in runs.items():
        row = {key: common.spread([run[key] for run in some]) for key in some[0] if key != "errors"}
        echo = name.replace("predict", "echo")
        of_echo = common.ratio(rates, name, echo).median if echo != name else None
        errors = sum(run["errors"] for run in some)
        found.append(
            {"clients": clients, "case": name, **row, "errors": errors, "of_echo": of_echo}
        )
    return found


def measured(words: list[str], seconds: int, pid: int) -> dict[str, float]:
    """One run of wrk: rates, latencies in ms, CPU time of the server per request in us, errors."""
    command = ["wrk", "-t1", f"-d{seconds}s", "--timeout", "20s", *words]
    before = cpu_seconds(pid)
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    requests, p50, p99, errors = map(float, text.splitlines()[-1].split())
    cpu_us = 1e6 * (cpu_seconds(pid) - before) / max(1, requests)
    return {"rate": requests / seconds, "p50": p50, "p99": p99, "cpu_us": cpu_us, "errors": errors}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
