"""Every benchmark in turn, then one table of all targets: `make bench`.

    python benchmarks/run_all.py [--quick] [--data ML-1M] [--run RUN] [--only step experts ...]
                                 [--peers-python PYTHON]

Each runs in a process of its own and prints its tables. The last line is one JSON object with
those of all benchmarks. Without --data made-up rows of the same size are used; without --run (a run
or model folder) a catalogue of that size is ranked by a model that was trained for an epoch of few
rows. Peers: `make bench-peers`. Exits with 1 when a benchmark fails; a missed target is no failure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import shape

HERE = Path(__file__).parent
RATINGS_TO_RANK = 30_000
SHIPPED_BATCH = 2048
SCRIPTS = (
    "step",
    "experts",
    "loop",
    "memory",
    "validation",
    "gpu",
    "gpu_loop",
    "ranking",
    "scoring",
    "preparing",
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="does it work? few rounds")
    parser.add_argument("--data", type=Path, help="prepared folder of MovieLens-1M")
    parser.add_argument("--run", type=Path, help="run or model folder, for ranking.py")
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=SCRIPTS)
    parser.add_argument("--peers-python", type=Path, help="to compare with other libraries, too")
    options = parser.parse_args(argv)
    scripts = [*options.only, *(["peers"] if options.peers_python else [])]
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        if options.data is None and {"loop", "memory", "peers"} & set(scripts):
            ratings = 60_000 if options.quick else shape.RATINGS
            options.data = shape.make_data(Path(scratch) / "data", ratings)
        if options.run is None and {"ranking", "scoring"} & set(options.only):
            options.run = made_run(Path(scratch))
        results = {script: run(script, arguments(script, options)) for script in scripts}
    print("## All targets\n")
    common.print_targets([t for result in results.values() for t in result.get("targets", [])])
    failed = [script for script, result in results.items() if "failed" in result]
    print(json.dumps({"benchmark": "all", **common.facts(), "failed": failed, "results": results}))
    sys.exit(1 if failed else 0)


def made_run(scratch: Path) -> Path | None:
    """A run with as many users and items as MovieLens-1M; None where training it fails."""
    data = shape.make_data(scratch / "few", RATINGS_TO_RANK)
    words = ["--data", str(data), "--out", str(scratch / "run"), "--max-epochs", "1"]
    config = "movielens_1m_paper"
    command = [sys.executable, "-m", "recsys_moe.cli", "fit", "--config", config, *words]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    return scratch / "run" if done.returncode == 0 else None


def arguments(script: str, options: argparse.Namespace) -> list[str]:
    """What a script is called with."""
    words = {
        "ranking": [str(options.run), "--users", "20"],
        "scoring": [str(options.run)],
        "loop": ["--data", str(options.data)],
        "memory": ["--data", str(options.data)],
        "peers": [
            *("--peers-python", str(options.peers_python), "--data", str(options.data)),
            *("--batch-size", str(SHIPPED_BATCH)),
        ],
    }.get(script, [])
    return [*words, "--quick"] if options.quick else words


def run(script: str, words: Sequence[str]) -> dict[str, Any]:
    """The script's last line; its tables go to stdout as they come."""
    print(f"## {script}\n", flush=True)
    path = HERE / "peers" / "compare.py" if script == "peers" else HERE / f"{script}.py"
    command = [sys.executable, str(path), *words]
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith('{"benchmark"'):
                print(line, end="", flush=True)
            last = line
    if process.returncode != 0 or not last.startswith('{"benchmark"'):
        print(f"failed: {' '.join(command)} (exit {process.returncode})\n", flush=True)
        return {"failed": process.returncode}
    return dict(json.loads(last))


if __name__ == "__main__":
    main()
