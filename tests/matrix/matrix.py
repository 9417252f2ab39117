"""The fast tests under other circumstances: processor, threads, order, locale, user, place, extras.

    python tests/matrix/matrix.py                     all of VARIATIONS, one after the other
    python tests/matrix/matrix.py avx2 c-locale       these
    python tests/matrix/matrix.py --of $(git rev-parse HEAD)    one, by a number in hex

Each runs `make fast`: most in this checkout and its environment, those with `place` in a copy of
what git knows, with an environment of its own. Prints what pytest prints, then a line for each with
its result and minutes; exit code 1 when one failed. `other-user` needs root, `extras` a Debian
where it may install PostgreSQL and Chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
LIMIT = 1200  # seconds of one variation


@dataclass(frozen=True)
class Variation:
    """What is other than in `make test`."""

    why: str
    variables: Mapping[str, str] = field(default_factory=dict)
    pytest: str = ""
    umask: int = -1
    place: str = ""
    """Name of the folder to copy the checkout to."""
    script: str = ""
    """Of this folder; runs in place of `make fast`."""


# NumPy refuses to do without what the processor does not have.
NUMPY_HAS = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
PLAIN = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBILITY",
    "NPY_DISABLE_CPU_FEATURES": " ".join(NUMPY_HAS),
}
VARIATIONS = {
    "plain-processor": Variation("no vectors wider than SSE4.1: other sums, sorts, logs", PLAIN),
    "avx2": Variation("vectors of eight", {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"}),
    # In `make test` each process has one.
    "two-threads": Variation("sums are divided", {"RECSYS_MOE_TEST_THREADS": "2"}),
    "far-east": Variation("local time is 13 h ahead of UTC", {"TZ": "Pacific/Auckland"}),
    "c-locale": Variation("no locale, names of bytes", {"LC_ALL": "C", "LANG": "C"}),
    "random-order": Variation("no test needs another", pytest="-p randomly"),
    "narrow-private": Variation(
        "a narrow terminal, files for their owner", {"COLUMNS": "40"}, umask=0o077
    ),
    "strange-place": Variation("a path with a blank and an umlaut", place="a clone \u00fcber"),
    "other-user": Variation("not root, on a disk of root's", place="clone", script="other_user.sh"),
    "extras": Variation("ray, dask, PostgreSQL, a browser", script="extras.sh"),
}


def main() -> int:
    chosen = parser().parse_args()
    names = [*VARIATIONS][int(chosen.of, 16) % len(VARIATIONS) :][:1] if chosen.of else chosen.names
    results = {name: ran(name) for name in names}
    print("\n".join(results.values()))
    return int(any(": passed" not in line for line in results.values()))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("names", nargs="*", default=[*VARIATIONS], metavar="NAME")
    made.add_argument("--of", metavar="HEX", help="one of them, by this number")
    return made


def ran(name: str) -> str:
    """Runs one; a line with its result."""
    started = time.monotonic()
    variation = VARIATIONS[name]
    print(f"== {name}: {variation.why}", flush=True)
    with tempfile.TemporaryDirectory(prefix="matrix-") as scratch:
        root = copied(Path(scratch) / variation.place) if variation.place else ROOT
        code = run(variation, root)
    result = "passed" if code == 0 else f"failed with {code}"
    return f"{name}: {result} in {(time.monotonic() - started) / 60:.1f} min"


def copied(place: Path) -> Path:
    """What git knows, and nothing else."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name)
    return place


def run(variation: Variation, root: Path) -> int:
    command = ["bash", str(HERE / variation.script)] if variation.script else ["make", "fast"]
    if variation.pytest:
        command.append(f"PYTEST_ARGS={variation.pytest}")
    before = os.umask(variation.umask) if variation.umask >= 0 else None
    try:
        return subprocess.run(
            command, cwd=root, env={**os.environ, **variation.variables}, timeout=LIMIT
        ).returncode
    except subprocess.TimeoutExpired:
        return 124
    finally:
        if before is not None:
            os.umask(before)


if __name__ == "__main__":
    sys.exit(main())
