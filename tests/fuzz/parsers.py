"""The parsers that `guided.py` leads inputs into, and the good files that each begins with."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import time
import traceback
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from data_prep import books as books_source
from data_prep.books import features as books_files
from data_prep.features import spec
from data_prep.movielens import files as movielens_files
from data_prep.read.bad_rows import BadRows
from data_prep.read.raw_files import RawFiles
from data_prep.table import cells, columns, entities, feature_cells, files
from recsys_moe.config.files import merge_all, parse_set, read_config_file
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import UserError
from recsys_moe.schema import Schema
from recsys_moe.serve import http, limits, schemas
from tests.data_prep import samples
from tests.fuzz.web import BODIES

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "formats" / "0.1"
SECONDS = 10.0
"""Of the processor, after which an input hangs."""


def good_files(place: Path) -> None:
    """What each target begins with, in a folder of its name."""
    for make in (samples.write_100k, samples.write_dat, samples.write_csv):
        make(place / "movielens" / make.__name__)
    head = '"ISBN";"Book-Title";"Book-Author";"Year-Of-Publication";"Publisher"'
    book = '"0195153448";"A ""tale"", told";"B \\"b\\"";"2002";"O &amp; P"'
    samples.lines(place / "books" / "BX-Books.csv", [head, book])
    rows = ['"User-ID";"ISBN";"Book-Rating"', '"1";"0195153448";"0"', '"2";"034545104X";"10"']
    samples.lines(place / "books" / "BX-Book-Ratings.csv", rows)
    users = ['"User-ID";"Location";"Age"', '"1";"leeds, england, uk";NULL', '"2";"a, b";"18"']
    samples.lines(place / "books" / "BX-Users.csv", users)
    samples.save(samples.frame(6), place / "table" / "log.csv")
    samples.save(samples.frame(6), place / "table" / "log.tsv")
    samples.lines(place / "table" / "items.csv", ["what,title,year", '1,"a, ""b""",5', "02,,1e3"])
    for kind in ("ids", "features"):
        for target, file in (("schema", "data/schema.json"), ("config", "run/config.yaml")):
            (place / target / kind).mkdir(parents=True)
            shutil.copy(KEPT / kind / file, place / target / kind)
    samples.lines(place / "set" / "words", ["model.router.k=2", "tasks={watch: {weight: 0.5}}"])
    for path, body in BODIES.items():
        samples.lines(place / "body" / path[1:], [json.dumps(body)])


def movielens(path: Path) -> None:
    raw, bad, name = RawFiles(path.parent), BadRows(skips(path)), path.name
    if name == "u.data" or name.startswith("ratings"):
        movielens_files.ratings(raw, name, 0.5, 5.0, bad)
    elif name in ("u.user", "users.dat"):
        movielens_files.users(raw, name, bad)
    else:
        movielens_files.movies(raw, name.replace("u.genre", "u.item"), bad)


def skips(path: Path) -> bool | None:
    """As with --skip-bad-rows for half of the inputs: what is behind a bad row is read too."""
    return True if path.stat().st_size % 2 else None


def books(path: Path) -> None:
    raw = RawFiles(path.parent)
    if path.name == "BX-Book-Ratings.csv":
        books_source._read(raw, True, BadRows(skips(path)))
        return
    users, items, _ = books_files.read(raw, repair_isbn=True)
    books_files.with_users(users, books_files.chosen("all", users, items))
    books_files.with_books(items, books_files.chosen("all", users, items))


FEATURES = spec.parse("context", ["words:multi=what:sep=|", "stars:numeric=stars"])


def table(path: Path) -> None:
    if path.name == "items.csv":
        entities.item_features(path, "what")
        return
    wanted, bad = ["who", "what", "stars", "when"], BadRows(skips(path))
    pieces = (part for one in files.pieces(path) for part in files.read_piece(one, wanted, bad))
    for part in (*files.read(path, wanted, bad), *pieces):
        found = cells.Cells(part, bad)
        cells.ids(found, "who")
        feature_cells.values(found, FEATURES)
        columns.weights(found, "stars")
        columns.timestamps(found, "when")


def schema(path: Path) -> None:
    one = Schema.load(path.parent)
    assert Schema.from_json(one.to_json()) == one, "it is another when it is read again"


def config(path: Path) -> None:
    one = parse_config(read_config_file(str(path)))
    path.write_text(one.to_yaml(comments=True))
    assert parse_config(read_config_file(str(path))) == one, "it is another when it is read again"


def settings(path: Path) -> None:
    """Each line as the word behind --set, in which no system passes a zero byte."""
    words = os.fsdecode(path.read_bytes().replace(b"\0", b"")).splitlines()
    parse_config(merge_all(parse_set(word) for word in words)).to_yaml()


@functools.cache
def kind_of_body(name: str) -> Any:
    return getattr(schemas, f"{name}_request")(limits.Limits())


def body(path: Path) -> None:
    """A refusal has a status below 500 and one shape."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": path.read_bytes()}

    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    request, bounds = Request(scope, receive), limits.Limits()
    try:
        asyncio.run(http.read(request, kind_of_body(path.name), bounds))
    except HTTPException as error:
        answer = asyncio.run(http.on_http_error(request, error))
        assert answer.status_code < 500 and list(json.loads(answer.body)) == ["error"]


TARGETS = {"movielens": movielens, "books": books, "table": table, "schema": schema}
TARGETS |= {"config": config, "set": settings, "body": body}


class Parser:
    """A target with its files. An input's first byte says which file it is the content of."""

    def __init__(self, name: str, place: Path) -> None:
        good_files(place)
        self.read = TARGETS[name]
        self.files = [path for path in sorted((place / name).rglob("*")) if path.is_file()]
        self.good = [bytes([n]) + path.read_bytes() for n, path in enumerate(self.files)]

    def __call__(self, data: bytes) -> None:
        number = (data or b"\0")[0] % len(self.files)
        self.files[number].write_bytes(data[1:])
        try:
            self.read(self.files[number])
        finally:
            self.files[number].write_bytes(self.good[number][1:])

    def broken(self, data: bytes) -> str:
        """The law that an input breaks, or nothing; the place in the code is its first word."""
        begun = time.process_time()
        try:
            self(data)
        except UserError:
            pass
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            *_, last = [frame for frame in frames if frame.filename.startswith(str(ROOT))]
            return f"{Path(last.filename).name}:{last.lineno} {error!r}"[:600]
        used = time.process_time() - begun
        return f"hangs {used:.0f} s of the processor" if used > SECONDS else ""
