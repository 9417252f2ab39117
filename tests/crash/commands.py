"""Kill commands with SIGKILL at random moments of their lives, and look at what they leave.

What a command was to replace must be whole, the former one or the new one, byte by byte; the same
command again must end well, with what a run in one piece gives and nothing beside it. `compare` and
`tune` go on from what they had; half of their kills hit one of the processes that they start, and
then they must end well by themselves. Times that were measured are left out of what is compared.

    python tests/crash/commands.py --seed 1
    python tests/crash/commands.py --command predict --kills 20

Prints a line per command, and as the last line a JSON object; exit code 1 when an invariant is
broken. `kills.py` does this to `fit`, `reloads.py` to the service. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a forked child inherits no threads
os.environ.setdefault("MPLBACKEND", "Agg")

from tests.crash.children import Child, finish

SMALL = (
    *("--set", "model.embedding_dim=8", "--set", "model.expert_dim=16"),
    *("--set", "model.tower_dims=[8]", "--set", "model.num_experts=4"),
)
MEASURED = ("latency_ms", "seconds_per_epoch", "bytes", "study", "started", "seconds", "created")
"""Keys of JSON files whose values are times, sizes of these, or drawn names."""
LEFT_OUT = ("*events/*", "*checkpoints/*", "*.log", "*.lock")
"""Files that a run in one piece may not have, or has more or less of."""
TIMED = (
    *("*command.txt", "*data.lock.json", "*plan.json", "study.db", "*epochs.csv", "*runs.csv"),
    *("*trials.csv", "table.*", "bootstrap.*"),
)
"""Files with times in them: of these all must be there, and as many lines of the tables."""

View = dict[str, str]
"""Relative path to the SHA-256 of what must be equal; "." for a single file."""


def view(out: Path) -> View:
    """Of a folder or a file; empty where there is none."""
    if out.is_file():
        return {".": hashlib.sha256(out.read_bytes()).hexdigest()}
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    names = {path.relative_to(out).as_posix(): path for path in files}
    kept = {n: p for n, p in names.items() if not any(fnmatch(n, left) for left in LEFT_OUT)}
    return {name: hashlib.sha256(_content(name, path)).hexdigest() for name, path in kept.items()}


def _content(name: str, path: Path) -> bytes:
    if any(fnmatch(name, timed) for timed in TIMED):
        text = path.suffix in (".csv", ".md", ".tex")
        return str(path.read_bytes().count(b"\n") if text else path.stat().st_size > 0).encode()
    if path.suffix != ".json":
        return path.read_bytes()
    return json.dumps(_lasting(json.loads(path.read_bytes())), sort_keys=True).encode()


def _lasting(value: Any) -> Any:
    """All of a JSON value but what was measured."""
    if isinstance(value, dict):
        return {key: _lasting(v) for key, v in value.items() if key not in MEASURED}
    return [_lasting(v) for v in value] if isinstance(value, list) else value


Words = Callable[[Path, Path], list[str]]
"""From the folder of what is read, and the output."""


@dataclass(frozen=True)
class Case:
    """A command, how it is started, and by which invariant it may end."""

    kills: int
    """Of a full campaign."""
    words: Words
    former: Words | None = None
    """Makes what is to be replaced. None: the command goes on from what it finds."""
    suffix: str = ""
    starts_workers: bool = False
    """Then they are killed too, and what they leave is for the same command alone."""


def _overwriting(*words: str) -> Words:
    return lambda folder, out: [
        *(word.format(f=folder) for word in words), "--out", str(out), "--overwrite"
    ]  # fmt: skip


def _writing(*words: str) -> Words:
    return lambda folder, out: [
        *(word.format(f=folder) for word in words), "--output", str(out), "--overwrite"
    ]  # fmt: skip


SYNTHETIC = ("prepare", "synthetic", "--users", "60", "--items", "40", "--interactions", "1000")
CASES = {
    "prepare": Case(
        150, _overwriting(*SYNTHETIC, "--seed", "1"), _overwriting(*SYNTHETIC, "--seed", "2")
    ),
    "predict": Case(
        120,
        _writing("predict", "{f}/run", "--input", "{f}/pairs.csv"),
        _writing("predict", "{f}/run", "--input", "{f}/fewer.csv"),
        ".csv",
    ),
    "recommend": Case(
        90,
        _writing("recommend", "{f}/run", "--users", "{f}/users.csv"),
        _writing("recommend", "{f}/run", "--users", "{f}/users.csv", "--k", "3"),
        ".csv",
    ),
    "export": Case(
        80,
        _overwriting("export", "{f}/run", "--format", "pt2"),
        _overwriting("export", "{f}/run"),
    ),
    "report": Case(
        50,
        _overwriting("report", "{f}/run"),
        _overwriting("report", "{f}/run", "--split", "val"),
    ),
    "evaluate": Case(
        60,
        lambda folder, out: ["evaluate", str(out), "--ranking"],
        lambda folder, out: ["evaluate", str(out)],
    ),
    "compare": Case(
        30,
        lambda folder, out: [
            *("compare", "--data", f"{folder}/data", "--routers", "topk", "--seeds", "1"),
            *("--max-epochs", "1", "--jobs", "1", "--out", str(out), *SMALL),
        ],
        starts_workers=True,
    ),
    "tune": Case(
        20,
        lambda folder, out: [
            *("tune", "--data", f"{folder}/data", "--router", "moesart", "--trials", "2"),
            *("--max-epochs", "1", "--jobs", "1", "--out", str(out), *SMALL[2:-2]),
        ],
        starts_workers=True,
    ),
}


def make(folder: Path) -> None:
    """Data, a run, pairs and users."""
    data, run = str(folder / "data"), str(folder / "run")
    fit = ["fit", "--data", data, "--out", run, "--max-epochs", "2", *SMALL]
    for words in ([*SYNTHETIC, "--out", data], fit):
        _finish(words, folder / "made.log")
    pairs = [f"{row % 60 + 1},{row % 40 + 1}\n" for row in range(20_000)]
    for name, rows in (("pairs", pairs), ("fewer", pairs[:100])):
        (folder / f"{name}.csv").write_text("user,item\n" + "".join(rows))
    (folder / "users.csv").write_text("user\n" + "".join(f"{user}\n" for user in range(1, 61)))


def _finish(words: list[str], log: Path) -> float:
    """Run to the end, in a forked child. Seconds."""
    begun = time.monotonic()
    finish(Child(words, log, forked=True), log)
    return time.monotonic() - begun


class Survey:
    """One command, killed again and again; `folder` has what it reads."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name, self.folder, self.case = name, folder, CASES[name]
        self.draw = random.Random(f"{seed} {name}")
        self.place = folder / name
        self.place.mkdir()
        self.log = folder / f"{name}.log"
        self.straight = self.fresh("straight")
        self.former = view(self.straight)
        self.life = _finish(self.case.words(folder, self.straight), self.log)
        self.new = view(self.straight)
        if self.new == self.former:
            sys.exit(f"{name}: a run changes nothing, so that a kill would show nothing")

    def fresh(self, base: str) -> Path:
        """An output of another making, where the case has one; in a folder of its own."""
        out = self.place / base / f"out{self.case.suffix}"
        out.parent.mkdir()
        if self.name == "evaluate":
            shutil.copytree(self.folder / "run", out)
        if self.case.former is not None:
            _finish(self.case.former(self.folder, out), self.log)
        return out

    def one(self, number: int, most: int) -> int:
        """Kill it up to `most` times over one output, then let it end. Kills that hit."""
        out = self.fresh(str(number)) if number % 2 else self.empty(str(number))
        hits, before = 0, view(out)
        for _ in range(most):
            begun = time.monotonic()
            child = Child(self.case.words(self.folder, out), self.log, forked=True)
            if child.wait(self.draw.uniform(0, self.life)) is not None:
                self.life = self.life if hits else time.monotonic() - begun
                break
            hits += 1
            aims_at_worker = self.case.starts_workers and self.draw.random() < 0.5
            if aims_at_worker and child.kill_a_worker(self.draw):
                finish(child, self.log)
                break
            child.kill()
            self.look(out, before)
        self.again(out)
        return hits

    def again(self, out: Path) -> None:
        """The same command once more, which ends well; then all of it goes."""
        took = _finish(self.case.words(self.folder, out), self.log)
        self.life = self.life if self.case.starts_workers else took  # a busy machine changes
        differ = sorted(name for name, _ in view(out).items() ^ self.new.items())
        self.check(not differ, out, f"the next start gave other {differ}")
        left = sorted(path.name for path in out.parent.iterdir())
        self.check(left == [out.name], out, f"the next start left {left}")
        shutil.rmtree(out.parent)

    def empty(self, base: str) -> Path:
        """Where nothing was before; `evaluate` needs its run."""
        if self.name == "evaluate":
            return self.fresh(base)
        out = self.place / base / f"out{self.case.suffix}"
        out.parent.mkdir()
        return out

    def look(self, out: Path, before: View, what: str = "a kill") -> None:
        """After a kill or a fault. `evaluate` replaces two files, one after the other."""
        if self.case.starts_workers:
            return
        now = view(out)
        if self.name == "evaluate":
            now = {name: sha for name, sha in now.items() if not name.endswith(".part")}
            whole = all(sha in (before.get(n), self.new.get(n)) for n, sha in now.items())
            whole &= before.keys() <= now.keys()
        else:
            whole = now in (before, self.new)
        self.check(whole, out, f"{what} left something half-written")

    def check(self, invariant: bool, out: Path, fault: str) -> None:
        if not invariant:
            sys.exit(f"{self.name}: {fault} in {out}\n{self.log.read_text()[-1500:]}")


def survey(name: str, folder: Path, kills: int, seed: int) -> int:
    """Kills that hit a command at work, at least `kills`; a line. Exits when an invariant is
    broken."""
    begun, asked, number, hits = time.monotonic(), Survey(name, folder, seed), 0, 0
    while hits < kills:
        most = 4 if asked.case.starts_workers else 2
        hits += asked.one(number, min(most, kills - hits))
        number += 1
        if asked.case.starts_workers:
            print(f"{name}: {hits} kills in {number} runs", flush=True)
    took = time.monotonic() - begun
    print(
        f"{name}: {hits} kills in {number} runs of {asked.life:.1f} s; {took:.0f} s: all whole",
        flush=True,
    )
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, help="of each command; without it 600 in all")
    parser.add_argument("--command", action="append", choices=CASES)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for module in ("pandas", "torch.utils.tensorboard", "recsys_moe.train.fit"):
            importlib.import_module(module)  # once, and not in every forked child
        make(folder)
        hits = {
            command: survey(command, folder, asked.kills or CASES[command].kills, asked.seed)
            for command in asked.command or CASES
        }
    print(json.dumps({"kills": sum(hits.values()), "hits": hits}))


if __name__ == "__main__":
    main()
