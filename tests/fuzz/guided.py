"""Let atheris lead inputs into the parsers: it goes on from those that reached a new line.

    make fuzz-guided FUZZ_ARGS="--runs 20000 --seed 2"
    python tests/fuzz/guided.py --target schema --file build/fuzz-guided/schema-0

Laws: only errors for the user come out, within 10 s of processor time and 4 GiB. Good files and
the seed decide the inputs; --seconds, of each target, may end them before --runs. Of each place in
the code one input that breaks a law is kept; --file shows it again, without atheris. Exit code 1
then; the last line is a JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import TOKENS

watched: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
if "--lead" in sys.argv:
    import atheris

    watched = atheris.instrument_imports(include=["data_prep", "recsys_moe"])
with watched:  # of what is imported here atheris sees which branches an input takes
    from tests.fuzz.parsers import TARGETS, Parser

SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
WALL = 120
"""Seconds of the clock, after which libFuzzer ends the process."""
MISSING = "atheris is not installed; `make fuzz-guided` brings it, for Python 3.11 to 3.13"


def lead(name: str, place: Path, asked: argparse.Namespace) -> None:
    """All inputs of a target. Never returns: libFuzzer ends the process."""
    parser, found = Parser(name, place / "files"), set()
    (place / "corpus").mkdir()
    for number, good in enumerate(parser.good):
        (place / "corpus" / f"{number:02d}").write_bytes(good)
    tokens = ("".join(f"\\x{byte:02x}" for byte in token) for token in TOKENS if len(token) <= 64)
    (place / "tokens").write_text("".join(f'"{token}"\n' for token in tokens if token))

    def one(data: bytes) -> None:
        if (said := parser.broken(data)) and (where := said.split()[0]) not in found:
            kept = asked.state / f"{name}-{len(found)}"
            kept.write_bytes(data)
            found.add(where)
            print(f"{kept}: {said}", flush=True)

    options = {"runs": asked.runs, "max_total_time": asked.seconds, "seed": asked.seed}
    options |= {"timeout": WALL, "rss_limit_mb": 4096, "keep_seed": 1, "dict": place / "tokens"}
    options |= {"print_final_stats": 1, "artifact_prefix": f"{asked.state / name}-"}
    words = [f"-{key}={value}" for key, value in options.items()]
    atheris.Setup(["guided", *words, str(place / "corpus")], one)
    atheris.Fuzz()


def told(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """What the process of a target said, in numbers."""
    log, begun = asked.state / f"{name}.log", time.monotonic()
    env = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    words = [f"--{key}={getattr(asked, key)}" for key in ("runs", "seconds", "seed", "state")]
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=SCRATCH) as place, log.open("w") as errors:
        line = [sys.executable, __file__, *words, "--target", name, "--lead", place]
        done = subprocess.run(line, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
    finds, said = done.stdout.splitlines(), log.read_text(errors="replace")
    finds += [f"{log}: the process ended with {done.returncode}"] if done.returncode else []
    print("".join(f"{find}\n" for find in finds), end="", flush=True)
    inputs = re.findall(r"number_of_executed_units: (\d+)", said)
    reached = re.findall(r"cov: (\d+) ", said)
    one = {"inputs": int((inputs or [0])[-1]), "broken": len(finds)}
    one |= {"reached": int((reached or [0])[-1]), "seconds": round(time.monotonic() - begun)}
    print(name, json.dumps(one), flush=True)
    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="inputs of each target")
    parser.add_argument("--seconds", type=int, default=0, help="of each target; 0: without end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--file", type=Path, help="an input of --target, to see it again")
    parser.add_argument("--state", type=Path, default=Path("build/fuzz-guided"))
    parser.add_argument("--lead", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.file:
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=SCRATCH) as place:
            said = Parser(asked.target[0], Path(place)).broken(asked.file.read_bytes())
        sys.exit(said or print("no law is broken"))
    if importlib.util.find_spec("atheris") is None:
        sys.exit(f"error: {MISSING}")
    if asked.lead:
        lead(asked.target[0], asked.lead, asked)
    asked.state.mkdir(parents=True, exist_ok=True)
    counts = {name: told(name, asked) for name in asked.target or TARGETS}
    whole = {key: sum(one[key] for one in counts.values()) for key in ("inputs", "broken")}
    print(json.dumps({**whole, "targets": counts}))
    sys.exit(whole["broken"] > 0)


if __name__ == "__main__":
    main()
