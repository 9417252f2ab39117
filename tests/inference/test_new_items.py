"""Items that training has not seen join the catalogue."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from recsys_moe.errors import DataError
from recsys_moe.inference.cold_start.new_items import read_items, with_items
from recsys_moe.inference.files import tables as row_files
from recsys_moe.inference.predictor import ColdItem, ColdUser, Predictor
from tests.conftest import Command, tells

NEW = pa.table(
    {
        "item": ["901", "902", "3", "903"],
        "title": ["One", "Two", "Known", None],
        "genres": ["genre 1|genre 2", "", "genre 0", "opera"],
        "year": ["1995", "1980.5", "2000", ""],
        "colour": ["red"] * 4,
    }
)


@pytest.fixture(scope="module")
def predictor(featured_run: Path) -> Predictor:
    return Predictor.load(featured_run)


def test_new_items_are_ranked_among_the_known_ones(predictor: Predictor) -> None:
    more, new, known, unknown = with_items(predictor, NEW)
    assert (new, known, unknown) == (3, 1, 1)
    whom = [1, "nobody", ColdUser({"age": 40}, [3, 4])]
    features = ({"genres": "genre 1|genre 2", "year": 1995}, {"year": 1980.5}, {})
    for one, ranked in zip(whom, more.recommend(whom, 50, score="rating"), strict=True):
        assert len(ranked) == 43
        by_item = {entry.item: entry for entry in ranked}
        ids = [1, 3, 40, 901, 902, 903]
        given = [*ids[:3], *map(ColdItem, features)]
        for task, score_B in predictor.score([one] * 6, given).tasks.items():  # type: ignore[list-item]
            scores = [by_item[item].scores[task] for item in ids]
            assert scores == pytest.approx(score_B.tolist(), abs=1e-5)
    assert (by_item[901].title, by_item[903].title) == ("One", None)
    [only] = more.recommend([1], 5, where=["title=Two"])
    assert [entry.item for entry in only] == [902]
    assert len(predictor.recommend([1], 50)[0]) == 40
    seen = {entry.item for entry in predictor.recommend([1], 50, exclude_seen=True)[0]}
    left = {entry.item for entry in more.recommend([1], 50, exclude_seen=True)[0]}
    assert left == seen | {901, 902, 903}


def test_recommend_reads_them_from_a_file(
    command: Command, featured_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "new.csv").write_text("item,genres,title\n901,genre 1,One\n3,,\n")
    options = ("--user", 1, "--items", tmp_path / "new.csv", "--candidates", "901,4", "--json")
    answer = json.loads(command("recommend", featured_run, *options).out)
    assert {(e["item"], e["title"]) for e in answer["items"]} >= {(901, "One")}
    assert len(answer["items"]) == 2
    assert tells(caplog.text, "new items ... 1 ... category: 0 ... known: 1")
    (tmp_path / "new.csv").write_text("id,genres\n901,genre 1\n")
    assert "column 'item' is missing" in command.fails(3, "recommend", featured_run, *options)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("item", ["901", "901"], "row 2 of the items: item 901 is also in row 1"),
        ("item", ["901", "x"], "row 2 of the items: item ids .*got 'x'"),
        ("item", ["901", ""], "items: row 2 .*'item'"),
        ("year", ["1990", "new"], "row 2 of the items: feature 'year' "),
        ("genres", ["a|", "b"], "row 1 of the items: feature 'genres' "),
    ],
)
def test_rows_that_cannot_be_are_refused(
    column: str, values: list[str], message: str, predictor: Predictor
) -> None:
    table = pa.table({"item": ["901", "902"]} | {column: values})
    with pytest.raises(DataError, match=message):
        with_items(predictor, table)


def test_new_items_in_floats_are_integers_where_the_known_ones_are(predictor: Predictor) -> None:
    more, new, known, _ = with_items(predictor, pa.table({"item": ["901.0", "3.0"]}))
    assert (new, known, more.items.plain("901"), more.items.ids[-1].as_py()) == (1, 1, 901, 901)


def test_a_history_is_the_same_beside_new_items_which_it_does_not_know(
    predictor: Predictor,
) -> None:
    more = with_items(predictor, NEW).predictor
    new = ColdUser({}, {3: 5.0, 4: 2.0, 901: None})
    vectors = [
        one.cold_users.vectors("user", one.resolve([new]).parts) for one in (predictor, more)
    ]
    assert torch.equal(*vectors)
    assert [one.unused(new).items for one in (predictor, more)] == [[901], [901]]


def test_items_that_unpack_to_a_hundred_times_their_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "FREE", 1 << 20)
    path = tmp_path / "new.csv.gz"
    path.write_bytes(gzip.compress(b"item\n" + (b"a" * 999 + b"\n") * 5_000))
    with pytest.raises(DataError, match=r"new\.csv\.gz must .*1048576 bytes"):
        read_items(path)
    path.write_bytes(gzip.compress(b"item\n" + b"901\n" * 10))
    assert read_items(path).num_rows == 10
