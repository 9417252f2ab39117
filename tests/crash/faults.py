"""Let a disk fail at each write of a command, and the clock of the day jump; see how it ends.

Every call that changes something where the output lies (open, write, sync, rename, mkdir ...) fails
once: alone with EIO, and with all after it with ENOSPC (a full disk) or EROFS (one that has become
read-only). The command must end with 1 and one line that says why, with what it was to replace
whole, or end well where it can do without; the same command again must then give what a run without
faults gives. With a clock that jumps by two days at every look a command gives the same, too.

    python tests/crash/faults.py --seed 1
    python tests/crash/faults.py --command export --most 10

`--most` draws that many of the calls of a command. Prints a line per command and fault, and as the
last line a JSON object; exit code 1 when an invariant is broken. Linux; needs a C compiler (`cc`).
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a forked child inherits no threads
os.environ.setdefault("MPLBACKEND", "Agg")

from tests.crash import kills
from tests.crash.children import SECONDS, Child, finish
from tests.crash.commands import CASES, Case, Survey, make, view

LIBRARY = "RECSYS_MOE_FAULTS"
"""Names the preloaded library, in the environment of the process that has it."""
FAULTS = {"EIO": False, "ENOSPC": True, "EROFS": True}
"""Each with whether all later calls fail as well."""
WITHOUT = "cannot be written, the result is not kept"
"""How `evaluate` says that it has printed what it cannot keep."""
CASES["fit"] = Case(0, lambda folder, out: kills.arguments(folder / "data", out))


def preload(folder: Path) -> None:
    """Start this program again under the library, which it compiles."""
    library, source = folder / "faults.so", Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    given = {"LD_PRELOAD": str(library), LIBRARY: str(library)}
    done = subprocess.run([sys.executable, *sys.argv], env={**os.environ, **given}, check=False)
    sys.exit(done.returncode)


class Faulty:
    """One command over a disk that fails."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.library = ctypes.CDLL(os.environ[LIBRARY])
        self.draw, self.number = random.Random(f"{seed} {name}"), 0
        self.survey = Survey(name, folder, seed)
        out = self._fresh()
        self._ends_well(out, partial(self.arm, out, 0, "EIO"))
        self.calls = int(self.library.faults_calls())
        self.survey.check(self.calls > 0, out, "no call was seen")
        self.survey.again(out)

    def _fresh(self) -> Path:
        self.number += 1
        if self.survey.name == "fit":
            return self.survey.empty(f"fault-{self.number}")
        return self.survey.fresh(f"fault-{self.number}")

    def arm(self, out: Path, call: int, fault: str) -> None:
        place = str(out.parent).encode()
        self.library.faults_arm(place, call, getattr(errno, fault), FAULTS[fault])

    def _words(self, out: Path) -> list[str]:
        return self.survey.case.words(self.survey.folder, out)

    def _ends_well(self, out: Path, first: partial[None]) -> None:
        finish(Child(self._words(out), self.survey.log, True, first), self.survey.log)

    def one(self, call: int, fault: str) -> int:
        """The exit code of the command whose call fails; then it is run again."""
        out = self._fresh()
        before, said = view(out), self.survey.log.stat().st_size
        first = partial(self.arm, out, call, fault)
        child = Child(self._words(out), self.survey.log, True, first)
        code = child.wait(SECONDS)
        lines = self.survey.log.read_bytes()[said:].decode().splitlines() or [""]
        self._judge(out, code, lines, f"{fault} at call {call}")
        if self.survey.name != "fit":
            self.survey.look(out, before, fault)
            left = sorted({path.name for path in out.parent.iterdir()} - {out.name})
            self.survey.check(fault == "EROFS" or not left, out, f"{fault} left {left}")
        self.survey.again(out)
        return 1 if code else 0

    def _judge(self, out: Path, code: int | None, lines: list[str], what: str) -> None:
        check = self.survey.check
        check(code in (0, 1), out, f"{what}: exit code {code}")
        check(not any("Traceback" in line for line in lines), out, f"{what}: a traceback")
        errors = [line for line in lines if line.startswith("error: ")]
        check(len(errors) == (code or 0), out, f"{what}: exit code {code} with {errors}")
        does_without = any(WITHOUT in line for line in lines) or self.survey.name == "fit"
        if code == 0 and not does_without:
            check(view(out) == self.survey.new, out, f"{what}: ended well, with something else")

    def jump(self) -> None:
        """The same as ever, whatever the clock of the day says."""
        out = self._fresh()
        self._ends_well(out, partial(self.library.faults_clock, 1))
        self.survey.again(out)


def campaign(name: str, folder: Path, most: int, seed: int) -> Counter[str]:
    """Failed calls by fault, and jumps; a line for each."""
    faulty, counts = Faulty(name, folder, seed), Counter[str]()
    for fault in FAULTS:
        every = range(1, faulty.calls + 1)
        calls = every if faulty.calls <= most else sorted(faulty.draw.sample(every, most))
        refused = sum(faulty.one(call, fault) for call in calls)
        counts[fault] += len(calls)
        print(
            f"{name}: {fault} at {len(calls)} of {faulty.calls} calls: {refused} refused, "
            f"{len(calls) - refused} did without",
            flush=True,
        )
    faulty.jump()
    return counts + Counter({"jumps": 1})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [name for name, case in CASES.items() if not case.starts_workers]
    parser.add_argument("--command", action="append", choices=names)
    parser.add_argument("--most", type=int, default=60, help="calls per command and fault")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if LIBRARY not in os.environ:
            preload(folder)
        for module in ("pandas", "torch.utils.tensorboard", "recsys_moe.train.fit"):
            importlib.import_module(module)  # once, and not in every forked child
        make(folder)
        counts = Counter[str]()
        for command in asked.command or names:
            counts += campaign(command, folder, asked.most, asked.seed)
    print(json.dumps({"faults": counts.total(), **counts}))


if __name__ == "__main__":
    main()
