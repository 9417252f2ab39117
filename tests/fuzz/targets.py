"""The targets through which files and words come in, and an input for each by (seed, number).

A target fills an empty folder and returns the step that reads the input. The step raises `Broken`
unless a command ends with a documented code and one line, and a failure leaves its former output
whole.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recsys_moe.errors import UserError
from recsys_moe.files import sha256_file
from tests.data_prep import samples
from tests.fuzz.mutations import Rng, json_text, mutated, table_text

KEPT = Path(__file__).parents[1] / "formats" / "0.1"
"""Small folders in the formats of this version."""
Step = Callable[[], None]
Target = Callable[[Rng, Path], Step]
CODES = (0, 2, 3)
"""How a command with bad input ends; 1 would be a fault of ours."""
GATED = {"evaluate": (*CODES, 4)}
"""4: it has done its work, and a bound of `--min` or `--max` is not met."""


class Broken(AssertionError):
    """A invariant that an input broke."""


@functools.cache
def prompt() -> Any:
    """The module of the command line; its parser, which takes the longest to make, is made once."""
    from recsys_moe.cli import commands

    commands._tree = functools.cache(commands._tree)
    return commands


def command(*words: object, codes: tuple[int, ...] = CODES) -> int:
    """Run a command line in this process. Raises Broken."""
    commands = prompt()
    sys.argv, out, err = ["recsys-moe", *map(str, words)], io.StringIO(), io.StringIO()
    logging.getLogger().handlers = [logging.NullHandler()]  # so that stderr has no logs of work
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            commands.run()
            code: object = "no SystemExit"
        except SystemExit as end:
            code = end.code
    said = err.getvalue()
    if not isinstance(code, int) or code not in codes:
        raise Broken(f"exit code {code}: {said[-600:]}")
    lines = said.splitlines()
    if code and (len(lines) != 1 or not lines[0].startswith("error: ")):
        raise Broken(f"exit code {code} with other than one line: {said[-600:]}")
    return code


def hashes(place: Path) -> dict[str, str]:
    """By path, of all files in a folder."""
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    return {str(path.relative_to(place)): sha256_file(path) for path in files}


def writing(place: Path, *words: object) -> Step:
    """A command beside what was there before: a failure leaves every file of `place` alone."""

    def step() -> None:
        before = hashes(place)
        codes = GATED.get(str(words[0]), CODES)
        if command(*words, codes=codes) in (2, 3) and hashes(place) != before:
            raise Broken(f"a failure changed {sorted(set(hashes(place)) ^ set(before)) or 'files'}")

    return step


def calling(function: Callable[[], object]) -> Step:
    """A part of a command that would train: only errors for the user may come out."""

    def step() -> None:
        with contextlib.suppress(UserError):
            function()

    return step


def change(rng: Rng, path: Path, change: Callable[[Rng, bytes], bytes] = mutated) -> None:
    path.write_bytes(change(rng, path.read_bytes()))


def any_of(rng: Rng, paths: list[Path]) -> Path:
    return paths[int(rng.integers(len(paths)))]


def files_of(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


def kind(rng: Rng) -> Path:
    return KEPT / ("ids", "features")[int(rng.integers(2))]


def movielens(rng: Rng, place: Path) -> Step:
    raw = place / "raw"
    variant, make = (
        ("100k", samples.write_100k),
        ("1m", samples.write_dat),
        ("latest-small", samples.write_csv),
    )[int(rng.integers(3))]
    make(raw)
    source = raw
    change(rng, any_of(rng, files_of(raw)), table_text)
    if rng.random() < 0.2:
        source = samples.zipped(raw, place / "raw.zip", "ml")
        change(rng, source)
    words = ["prepare", "movielens", "--variant", variant, "--source", source, "--partial"]
    words += ["--features", "all"] if rng.random() < 0.5 else []
    words += ["--protocol", "time"] if rng.random() < 0.3 else []
    words += ["--skip-bad-rows"] if rng.random() < 0.3 else []
    return writing(place, *words, *former(place))


def former(place: Path) -> list[object]:
    """The words that replace a folder, which is there."""
    shutil.copytree(KEPT / "ids" / "data", place / "out")
    return ["--out", place / "out", "--overwrite"]


def books(rng: Rng, place: Path) -> Step:
    raw = place / "raw"
    rows = [f'"{u}";"{b:010d}";"{(u * b) % 11}"' for u in range(1, 9) for b in range(8)]
    samples.lines(raw / "BX-Book-Ratings.csv", ['"User-ID";"ISBN";"Book-Rating"', *rows])
    head = '"ISBN";"Book-Title";"Book-Author";"Year-Of-Publication";"Publisher"'
    titles = [
        f'"{b:010d}";"Book {b}, a ""tale""";"Author {b % 3}";"{1990 + b}";"P"' for b in range(8)
    ]
    samples.lines(raw / "BX-Books.csv", [head, *titles])
    users = [f'"{u}";"leeds, england, uk";"{20 + u}"' for u in range(1, 9)]
    samples.lines(raw / "BX-Users.csv", ['"User-ID";"Location";"Age"', *users])
    change(rng, any_of(rng, files_of(raw)), table_text)
    words = ["prepare", "books", "--source", raw, "--min-user", 2, "--min-item", 2]
    words += ["--features", "all"] if rng.random() < 0.5 else []
    words += ["--repair-isbn"] if rng.random() < 0.3 else []
    words += ["--skip-bad-rows"] if rng.random() < 0.3 else []
    return writing(place, *words, *former(place))


TABLE = ("--user", "who", "--item", "what", "--task", "watch:binary=clicked")


def table(rng: Rng, place: Path) -> Step:
    rows, items, users = samples.frame(40), place / "items.csv", place / "users.csv"
    name = ("log.csv", "log.tsv", "log.parquet", "log.csv.gz")[int(rng.integers(4))]
    if name == "log.parquet":
        rows.to_parquet(place / name)
    else:
        rows.to_csv(place / name, index=False, sep="\t" if name == "log.tsv" else ",")
    items.write_text("what,title,genres\n" + "".join(f"{n:03d},T{n},a|b\n" for n in range(10)))
    users.write_text("who,age\n" + "".join(f"u{n},{n}\n" for n in range(8)))
    path = any_of(rng, [place / name, place / name, items, users])
    change(rng, path, mutated if path.suffix in (".parquet", ".gz") else table_text)
    words = [
        "prepare",
        "table",
        "--input",
        place / name,
        *TABLE,
        "--task",
        "rating:regression=stars",
    ]
    words += ["--items", items] if path == items else []
    more = ["--user-features", users, "--user-feature", "age:numeric=age"]
    words += more if path == users else []
    words += ["--skip-bad-rows"] if rng.random() < 0.3 else []
    words += ["--engine", "stream", "--protocol", "hash"] if rng.random() < 0.3 else []
    words += ["--negatives", "per-user"] if rng.random() < 0.2 and path.suffix == ".csv" else []
    return writing(place, *words, *former(place))


def schema(rng: Rng, place: Path) -> Step:
    shutil.copytree(kind(rng) / "data", place / "data")
    change(rng, place / "data" / "schema.json", json_text)
    return writing(place, "fit", "--data", place / "data", "--out", place / "run", "--dry-run")


def prepared(rng: Rng, place: Path) -> Step:
    """The files of a prepared folder, or of another one in their place."""
    from recsys_moe.artifact.evaluate import evaluate_artifact

    shutil.copytree(kind(rng) / "data", place / "data")
    path = any_of(rng, [p for p in files_of(place / "data") if p.suffix == ".parquet"])
    if rng.random() < 0.2:
        shutil.copyfile(any_of(rng, files_of(KEPT)), path)
    else:
        change(rng, path)
    model = kind(rng) / "run" / "model"
    return calling(lambda: evaluate_artifact(model, "train", place / "data"))


def config(rng: Rng, place: Path) -> Step:
    (place / "c.yaml").write_bytes((kind(rng) / "run" / "config.yaml").read_bytes())
    change(rng, place / "c.yaml", mutated if rng.random() < 0.8 else _deep_yaml)
    return writing(place, "config", "show", "--config", place / "c.yaml")


def _deep_yaml(rng: Rng, data: bytes) -> bytes:
    return mutated(rng, mutated(rng, mutated(rng, data)))


def model(rng: Rng, place: Path) -> Step:
    """Files changed, swapped with those of another model, with hashes that fit or do not."""
    folder = place / "model"
    shutil.copytree(kind(rng) / "run" / "model", folder)
    path = any_of(rng, files_of(folder))
    if rng.random() < 0.2:
        other = any_of(rng, files_of(KEPT))
        shutil.copyfile(KEPT / "features" / "run" / "model" / path.name, path)
        if rng.random() < 0.5:
            shutil.copyfile(other, path)
    elif rng.random() < 0.1:
        path.unlink()
    else:
        change(rng, path, json_text if path.suffix == ".json" else mutated)
    if path.name != "manifest.json" and path.is_file() and rng.random() < 0.9:
        sign(folder)
    if rng.random() < 0.3:
        return writing(place, "recommend", folder, "--user", 1, "--json")
    (place / "in.csv").write_text("user,item\n1,3\n99,3\n7,15\n")
    (place / "out.csv").write_text("former\n")
    files = ["--input", place / "in.csv", "--output", place / "out.csv", "--overwrite"]
    return writing(place, "predict", folder, *files)


def sign(folder: Path) -> None:
    """Let the manifest fit the files, as a stranger's would."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {file: sha256_file(folder / file) for file in manifest["files"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def pairs(rng: Rng, place: Path) -> Step:
    """What `predict` and `recommend` read."""
    text, output = b"user,item,history,age\n1,3,1|2,30\n99,3,,\n7,15,3,1e3\n", place / "out.csv"
    name = ("in.csv", "in.tsv", "in.parquet")[int(rng.integers(3))]
    if name == "in.parquet":
        import pandas as pd

        pd.read_csv(io.BytesIO(text)).to_parquet(place / name)
    else:
        (place / name).write_bytes(text.replace(b",", b"\t") if name == "in.tsv" else text)
    change(rng, place / name, mutated if name == "in.parquet" else table_text)
    output.write_text("former\n")
    files = ["--output", output, "--overwrite"]
    run = kind(rng) / "run"
    if rng.random() < 0.3:
        return writing(place, "recommend", run, "--users", place / name, *files)
    return writing(place, "predict", run, "--input", place / name, *files)


def checkpoint(rng: Rng, place: Path) -> Step:
    from recsys_moe.artifact.run_folder import CHECKPOINTS
    from recsys_moe.train.resume import check_resume, find_checkpoint

    run, source = place / "run", kind(rng)
    shutil.copytree(source / "run" / CHECKPOINTS, run / CHECKPOINTS)
    path = run / CHECKPOINTS / "last.ckpt"
    change(rng, path, _changed_archive if rng.random() < 0.7 else mutated)

    def go_on() -> None:
        from recsys_moe.artifact.model_folder import artifact_config

        saved = find_checkpoint(run, str(path))
        if saved is not None:
            check_resume(saved, artifact_config(source / "run"), source / "data")

    return calling(go_on)


def _changed_archive(rng: Rng, data: bytes) -> bytes:
    """A whole zip one of whose members is changed, as a stranger's would be."""
    import zipfile

    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        names = old.namelist()
        pickled = next(name for name in names if name.endswith("data.pkl"))
        chosen = pickled if rng.random() < 0.7 else names[int(rng.integers(len(names)))]
        for name in names:
            content = old.read(name)
            new.writestr(name, mutated(rng, content) if name == chosen else content)
    return made.getvalue()
