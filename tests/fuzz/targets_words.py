"""The targets of studies, and of words: command-line values, `--set`, plans of earlier starts."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

from tests.fuzz.mutations import TOKENS, Rng, json_text, mutated, text
from tests.fuzz.targets import KEPT, Step, calling, change, kind, writing

DATA = KEPT / "ids" / "data"
RUN = KEPT / "features" / "run"


@functools.cache
def comparison(folder: Path) -> object:
    from recsys_moe.lab.compare.plan import make_plan
    from recsys_moe.lab.compare.request import ComparisonRequest

    return make_plan(ComparisonRequest(routers=("topk", "moesart"), seeds=(0, 1)), folder)


@functools.cache
def search(folder: Path) -> object:
    from recsys_moe.config.settings import parse_config
    from recsys_moe.lab.tune.plan import StudyRequest, make_plan

    return make_plan(StudyRequest(config=parse_config({}), trials=2), folder, "study.db")


def plan(rng: Rng, place: Path) -> Step:
    """plan.json of `compare` or `tune`, which a later start reads."""
    from recsys_moe.lab.compare import plan as compare_plan
    from recsys_moe.lab.tune import plan as tune_plan

    module, asked = ((compare_plan, comparison), (tune_plan, search))[int(rng.integers(2))]
    settle = getattr(module, "settle")  # noqa: B009 - one name, two types of plans
    settle(asked(DATA), place)
    change(rng, place / "plan.json", json_text)
    return calling(lambda: settle(asked(DATA), place))


@functools.cache
def database(folder: Path) -> bytes:
    """study.db with two trials."""
    import tempfile

    from recsys_moe.lab.tune.study import Study

    with tempfile.TemporaryDirectory() as name:
        study = Study(search(folder), Path(name), None)  # type: ignore[arg-type]
        for loss in (0.5, 0.25):
            study.ask().complete(loss)
        study.close()
        return (Path(name) / "study.db").read_bytes()


def study(rng: Rng, place: Path) -> Step:
    from recsys_moe.lab.tune.study import Study

    (place / "study.db").write_bytes(mutated(rng, database(DATA)))

    def read() -> None:
        opened = Study(search(DATA), place, None)  # type: ignore[arg-type]
        try:
            opened.entries()
        finally:
            opened.close()

    return calling(read)


OPTIONS: dict[str, tuple[str, ...]] = {
    "fit": (
        *("--config", "--router", "--k", "--experts", "--max-epochs", "--batch-size", "--lr"),
        *("--seed", "--weights", "--set", "--set", "--set", "--resume", "--init-from", "--devices"),
    ),
    "evaluate": ("--split", "--min", "--max", "--k", "--task", "--relevant", "--data"),
    "predict": ("--input", "--user", "--item"),
    "recommend": (
        *("--user", "--users", "--k", "--history", "--features", "--items", "--candidates"),
        *("--where", "--score"),
    ),
    "similar": ("--item", "--k"),
    "config show": ("--config", "--router", "--set", "--set"),
    "prepare table": (
        *("--input", "--user", "--item", "--task", "--fractions", "--timestamp", "--weight"),
        *("--items", "--user-feature", "--item-feature", "--context", "--negative-ratio"),
        *("--duplicates", "--protocol", "--engine", "--max-memory-mb", "--seed", "--user-features"),
    ),
    "prepare synthetic": ("--users", "--items", "--interactions", "--seed", "--protocol"),
    "compare": ("--routers", "--seeds", "--weights", "--split", "--set", "--config", "--settings"),
    "tune": ("--router", "--trials", "--sampler", "--pruner", "--storage", "--set", "--space"),
    "export": ("--format",),
    "report": ("--split", "--rows", "--seed", "--data"),
}
GOOD = {
    "--set": ("model.router.k=2", "optim.lr=0.1", "model={embedding_dim: 4}", "tasks.watch=1"),
    "--k": ("2",),
    "--min": ("watch.auc=0.1",),
    "--task": ("watch", "watch:binary=watched", "x:regression=rating"),
    "--where": ("genres=Comedy", "year>3"),
    "--history": ("1,2",),
    "--features": ("age=3",),
    "--user": ("1",),
    "--item": ("3",),
    "--routers": ("topk,moesart",),
}


def value(rng: Rng, option: str) -> str:
    """A good one, half of the time mutated; or anything. No zero byte: no system passes one."""
    good = GOOD.get(option, ("1", "topk", "test", "a:b=c"))
    drawn = good[int(rng.integers(len(good)))]
    if rng.random() < 0.3:
        drawn = text(rng)
    elif rng.random() < 0.7:
        short = tuple(token for token in TOKENS if len(token) < 100)
        drawn = os.fsdecode(mutated(rng, drawn.encode(), short))[:50_000]
    drawn = drawn.replace("\0", "").encode(
        "utf-8", "surrogateescape" if _bytes(drawn) else "replace"
    )
    return os.fsdecode(drawn)


def _bytes(word: str) -> bool:
    return all(not 0xD800 <= ord(c) <= 0xDFFF or 0xDC80 <= ord(c) <= 0xDCFF for c in word)


def words(rng: Rng, place: Path) -> Step:
    """A command whose options have values of all kinds; nothing that would train for long."""
    name = list(OPTIONS)[int(rng.integers(len(OPTIONS)))]
    given: list[object] = [*name.split(), *_needed(name, place)]
    for _ in range(int(rng.integers(1, 4))):
        option = OPTIONS[name][int(rng.integers(len(OPTIONS[name])))]
        given += [f"{option}={value(rng, option)}"]
    if name == "evaluate":  # which keeps its result in the run
        shutil.copytree(RUN, place / "run")
    (place / "log.csv").write_text("user,item,watched\n" + "1,2,1\n2,1,0\n3,3,1\n" * 3)
    os.chdir(place)
    return writing(place, *given)


def _needed(name: str, place: Path) -> list[object]:
    """What comes first, so that the drawn options matter; a study goes no further than its plan."""
    out = ["--out", place / "out"]
    return {
        "fit": ["--data", DATA, *out, "--dry-run"],
        "evaluate": [place / "run", "--data", DATA.parents[1] / "features" / "data"],
        "predict": [RUN, "--input", place / "log.csv", "--output", place / "out.csv"],
        "recommend": [RUN],
        "similar": [RUN],
        "prepare table": ["--input", place / "log.csv", "--user", "user", "--item", "item", *out],
        "prepare synthetic": ["--users", 9, "--items", 9, "--interactions", 30, *out],
        "compare": ["--data", DATA, "--routers", "no-such", "--seeds", 1, *out],
        "tune": ["--data", DATA, "--router", "no-such", "--trials", 1, *out],
        "export": [RUN, *out, "--format", "no-such"],
        "report": [RUN, "--split", "no-such", *out],
    }.get(name, [])


def settings(rng: Rng, place: Path) -> Step:
    """`--set KEY=VALUE` over a configuration."""
    given = [
        word for _ in range(int(rng.integers(1, 3))) for word in ("--set", value(rng, "--set"))
    ]
    source = kind(rng) / "run" / "config.yaml"
    return writing(place, "config", "show", "--config", source, *given)
