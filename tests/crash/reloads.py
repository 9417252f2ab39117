"""Kill what replaces the model of a service, and the service while it takes the new one.

`export` puts one of two models in turn where a service watches. Every other kill hits `export` at a
random moment: the service must go on answering, with one of the two. The others hit the service
after the whole replacement, while it loads: started again, it must answer with the new one.

    python tests/crash/reloads.py --kills 30 --seed 1

Prints a line, and as the last line a JSON object; exit code 1 when an invariant is broken. Linux
only.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a forked child inherits no threads

from tests.crash.children import SECONDS, Child, finish
from tests.crash.commands import SMALL, SYNTHETIC

ASKED = {"users": [1, 2, 3], "items": [4, 5, 6]}
LOADING, WATCHING = 0.6, 0.05
"""Seconds: a little more than a service takes to load, and between looks at the folder."""


class Service:
    """`serve` in a forked child, on a port of its own choice; killed at the end."""

    def __init__(self, model: Path, log: Path) -> None:
        log.unlink(missing_ok=True)
        words = ["serve", str(model), "--port", "0", "--watch", str(WATCHING)]
        self.child = Child(words, log, forked=True)
        end = time.monotonic() + SECONDS
        while not (said := re.search(r"on (http://\S+)", log.read_text() if log.exists() else "")):
            if self.child.code() is not None or time.monotonic() > end:
                sys.exit(f"the service does not start:\n{log.read_text()}")
            time.sleep(0.01)
        self.url = said[1]

    def answer(self) -> Any:
        """What it says of the pairs that are asked."""
        request = urllib.request.Request(
            f"{self.url}/predict", json.dumps(ASKED).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return json.loads(response.read())["scores"]


class Place:
    """A folder with the model of a service, and the two models that come to it in turn."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model, self.log = folder, folder / "model", folder / "log"
        data = str(folder / "data")
        self._run([*SYNTHETIC, "--out", data])
        for seed in ("0", "1"):
            fit = ["fit", "--data", data, "--out", str(folder / seed), "--seed", seed]
            self._run([*fit, "--max-epochs", "1", *SMALL])
        self.answers = [self._first_answer(turn) for turn in (0, 1)]

    def _run(self, words: list[str]) -> None:
        finish(Child(words, self.log, forked=True), self.log)

    def words(self, turn: int) -> list[str]:
        """Of the command that puts one of the models there."""
        return ["export", str(self.folder / str(turn % 2)), "--out", str(self.model), "--overwrite"]

    def _first_answer(self, turn: int) -> Any:
        self.put(turn)
        service = self.start()
        try:
            return service.answer()
        finally:
            service.child.kill()

    def put(self, turn: int) -> None:
        begun = time.monotonic()
        self._run(self.words(turn))
        self.life = time.monotonic() - begun

    def start(self) -> Service:
        return Service(self.model, self.folder / "serve.log")


def expect(invariant: bool, fault: str) -> None:
    if not invariant:
        sys.exit(fault)


def campaign(place: Place, kills: int, draw: random.Random) -> dict[str, int]:
    """Kills that hit, by what they hit."""
    hits, service, turn = {"export": 0, "serve": 0}, place.start(), 0
    try:
        while sum(hits.values()) < kills:
            turn += 1
            if turn % 2:
                child = Child(place.words(turn), place.log, forked=True)
                if child.wait(draw.uniform(0, place.life)) is None:
                    child.kill()
                    hits["export"] += 1
                expect(service.answer() in place.answers, "another answer after a killed export")
            place.put(turn)
            if turn % 2 == 0:
                time.sleep(draw.uniform(0, LOADING))
                service.child.kill()
                hits["serve"] += 1
                service = place.start()
                new = place.answers[turn % 2]
                expect(service.answer() == new, "another answer after the new start")
            left = [path.name for path in place.folder.iterdir() if path.name.startswith(".")]
            expect(not left, f"the next export left {left}")
    finally:
        service.child.kill()
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for module in ("pandas", "uvicorn", "fastapi", "recsys_moe.train.fit"):
        importlib.import_module(module)  # once, and not in every forked child
    with tempfile.TemporaryDirectory() as name:
        place = Place(Path(name))
        expect(place.answers[0] != place.answers[1], "both models say the same")
        hits = campaign(place, asked.kills, random.Random(asked.seed))
    print(f"reload: {hits['export']} kills of export, {hits['serve']} of serve: all answered well")
    print(json.dumps({"kills": sum(hits.values()), "hits": hits}))


if __name__ == "__main__":
    main()
