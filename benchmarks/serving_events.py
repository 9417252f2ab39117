"""What events cost `recsys-moe serve`: a model of sequences beside one without, at 32 clients.

    python benchmarks/serving_events.py RUN BASE [--seconds N] [--rounds N] [--events 1 3 10]

RUN reads events (`model.sequence`), BASE does not; both know users 1.. and items 1.. of the same
log. Needs wrk on the PATH. A round measures every case in turn; the figure is the processor time of
the server per request, and its ratio to that of BASE in the same round.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import common
from serving import SCRIPT, measured, served

USERS, ITEMS = 900, 700
SCRIPTS = {
    "predict": """'{"users":[' .. n % USERS + 1 .. '],"items":[' .. n % ITEMS + 1 .. ']EVENTS}'""",
    "recommend": """'{"users":[' .. n % USERS + 1 .. '],"k":10EVENTS}'""",
}
EVENT = """{"item":' .. (n + NUMBER) % ITEMS + 1 .. ',"time":TIME,"value":4}"""
LATER = 1_700_000_000
MOST = 1.5
"""Cost of a request with events, of one to a model without sequence."""
COLUMNS = {
    "case": "{case}", "requests/s": "{rate:.0f}", "CPU per request, us": "{cpu_us:.0f}",
    "of the base": "{of_base:.2f}", "errors": "{errors:.0f}",
}  # fmt: skip


def body(path: str, events: int) -> str:
    """An expression of Lua: the body of request number n."""
    each = [
        EVENT.replace("NUMBER", str(place)).replace("TIME", str(LATER + place))
        for place in range(events)
    ]
    brought = f',"events":[{",".join(each)}]' if events else ""
    text = SCRIPTS[path].replace("EVENTS", brought)
    return text.replace("USERS", str(USERS)).replace("ITEMS", str(ITEMS))


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=5, clock=False)
    parser.add_argument("run", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--events", type=int, nargs="+", default=[1, 3, 10])
    parser.add_argument("--paths", choices=[*SCRIPTS], nargs="+", default=[*SCRIPTS])
    options = common.parse(parser, argv)
    if not shutil.which("wrk"):
        sys.exit("wrk is not on the PATH; on Debian: apt-get install wrk")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [
            (served(stack, model, port), port)
            for model, port in ((options.base, 8774), (options.run, 8775))
        ]
        rows = [row for path in options.paths for row in of_path(options, folder, path, servers)]
    common.table(COLUMNS, rows)
    kept = [
        common.target(str(row["case"]), row["of_base"].median, MOST, " of the base")
        for row in rows
        if "inline" in str(row["case"])
    ]
    common.report("serving_events", {"clients": options.clients, "rows": rows}, kept)


def of_path(
    options: argparse.Namespace, folder: Path, path: str, servers: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    """The cases of a path in turn, of users whose states the service keeps."""
    base, run = servers
    cases = {f"{path}, no sequence": (base, 0), f"{path}, stored events": (run, 0)}
    cases |= {f"{path}, {count} inline": (run, count) for count in options.events}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for (_, port), events in cases.values():
        visit(port, events)
    for _ in range(options.rounds):
        for name, ((pid, port), events) in cases.items():
            script = folder / "script.lua"
            script.write_text(SCRIPT.replace("BODY", body(path, events)))
            words = [f"-c{options.clients}", "-s", str(script), f"http://127.0.0.1:{port}/{path}"]
            found[name].append(measured(words, options.seconds, pid))
    costs = {name: [one["cpu_us"] for one in some] for name, some in found.items()}
    return [
        {
            "case": name,
            "rate": common.spread([one["rate"] for one in some]),
            "cpu_us": common.spread(costs[name]),
            "of_base": common.ratio(costs, name, f"{path}, no sequence"),
            "errors": sum(one["errors"] for one in some),
        }
        for name, some in found.items()
    ]


def visit(port: int, count: int) -> None:
    """Ask about every user once, with as many events."""
    events = [{"item": 1 + place, "time": LATER + place} for place in range(count)]
    for start in range(0, USERS, 100):
        users = [*range(start + 1, start + 101)]
        given: dict[str, object] = {"users": users, "items": [1] * len(users), "events": events}
        if not count:
            del given["events"]
        body, heads = json.dumps(given).encode(), {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{port}/predict"
        urllib.request.urlopen(urllib.request.Request(url, body, heads)).close()


if __name__ == "__main__":
    main()
