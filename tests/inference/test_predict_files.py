"""Files of pairs: delimiters, quotes, pieces, the calibrated column."""

from __future__ import annotations

import csv
import gzip
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from data_prep.read.bad_rows import BadRows
from data_prep.table import files
from recsys_moe.artifact.calibration import Calibration
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.build import build_model
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.files import predict as predict
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.files.tables import count_rows
from recsys_moe.inference.predictor import Predictor
from tests.conftest import TINY_MODEL

AWKWARD = ["plain", "a, b", 'say "hi"', "tab\there", "two\nlines", "", " 7 "]
AWKWARD += ["=1+1", '=HYPERLINK("x","y")', "+1", "-1", "@x", "\t=1", "'1", "\v", "\u2028"]
"""From `=1+1` on: formulas of a spreadsheet, which are ids and titles like others to a program."""


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return Predictor.load(run)


def write(path: Path, delimiter: str) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerows([("user", "item", "note"), *((1, 2, note) for note in AWKWARD)])
    return path


@pytest.mark.parametrize("target", [".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize(("source", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_every_text_survives_from_every_format_to_every_other(
    predictor: Predictor, tmp_path: Path, source: str, delimiter: str, target: str
) -> None:
    pairs = write(tmp_path / f"pairs{source}", delimiter)
    out = tmp_path / f"out{target}"
    predict_file(predictor, pairs, out)
    if target == ".parquet":
        notes = pq.read_table(out)["note"].to_pylist()
    else:
        with out.open(newline="") as file:
            reader = csv.DictReader(file, delimiter="\t" if target == ".tsv" else ",")
            notes = [row["note"] for row in reader]
    assert notes == AWKWARD


@pytest.mark.parametrize("target", [".csv", ".tsv"])
def test_a_carriage_return_makes_no_row_of_what_follows(
    predictor: Predictor, tmp_path: Path, target: str
) -> None:
    """Python's writer leaves it without quotes, and readers take it for the end of a row."""
    notes = ["a\r=1+1,2\t3", "\r", "b", None]
    table = pa.table({"user": [1] * 4, "item": [2] * 4, "note\r": notes})
    pq.write_table(table, tmp_path / "pairs.parquet")
    predict_file(predictor, tmp_path / "pairs.parquet", tmp_path / f"out{target}")
    delimiter = "\t" if target == ".tsv" else ","
    with (tmp_path / f"out{target}").open(newline="") as file:
        read = list(csv.DictReader(file, delimiter=delimiter))
    assert [row["note\r"] for row in read] == ["a\r=1+1,2\t3", "\r", "b", ""]
    frame = pd.read_csv(tmp_path / f"out{target}", sep=delimiter, keep_default_na=False)
    assert frame["note\r"].tolist() == ["a\r=1+1,2\t3", "\r", "b", ""]


def test_only_values_that_need_quotes_are_quoted(predictor: Predictor, tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.csv", ",")
    predict_file(predictor, pairs, tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    columns = "user,item,note,watch,rating,watch_calibrated,unseen_user,unseen_item"
    assert lines[0] == columns
    assert lines[1].startswith("1,2,plain,0.") and lines[1].endswith(",false,false")
    assert lines[2].startswith('1,2,"a, b",')


def test_the_calibrated_column_is_the_map_of_the_raw_one(run: Path, tmp_path: Path) -> None:
    bent = Calibration((-1.0, 0.0, 1.0), (-1.5, 0.5, 1.0), rows=9)
    predictor = Predictor(replace(load_artifact(run), calibration={"watch": bent}))
    source = tmp_path / "pairs.parquet"
    pd.DataFrame({"user": range(1, 41), "item": range(1, 41)}).to_parquet(source)
    predict_file(predictor, source, tmp_path / "out.parquet")
    frame = pd.read_parquet(tmp_path / "out.parquet")
    raw = predictor.score(range(1, 41), range(1, 41)).tasks["watch"].double()
    expected = bent.apply(raw.logit())
    assert frame["watch_calibrated"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert frame["watch"].tolist() == pytest.approx(raw.tolist(), abs=1e-6)


def test_order_and_values_do_not_depend_on_the_pieces(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "pairs.parquet"
    pd.DataFrame({"user": [n % 60 for n in range(500)], "item": range(500)}).to_parquet(source)
    predict_file(predictor, source, tmp_path / "whole.parquet")
    monkeypatch.setattr(predict, "ROWS_PER_PIECE", 64)
    given: list[int] = []
    predict_file(predictor, source, tmp_path / "pieces.parquet", progress=given.append)
    whole, pieces = (pd.read_parquet(tmp_path / f"{n}.parquet") for n in ("whole", "pieces"))
    pd.testing.assert_frame_equal(whole, pieces, atol=1e-6)
    assert given == [64] * 7 + [52]  # 500 = 7 * 64 + 52


def test_the_progress_bar_knows_the_rows(tmp_path: Path) -> None:
    text, parquet = tmp_path / "p.tsv", tmp_path / "p.parquet"
    text.write_text("user\titem\n1\t2\n3\t4\n")
    pd.DataFrame({"user": [1, 2, 3]}).to_parquet(parquet)
    assert (count_rows(text), count_rows(parquet)) == (2, 3)
    assert count_rows(tmp_path / "none.csv") is None
    assert count_rows(write(tmp_path / "not.parquet", ",")) is None


def test_another_suffix_is_refused(predictor: Predictor, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--input .*\.csv, .*\.pq .*json"):
        predict_file(predictor, tmp_path / "pairs.json", tmp_path / "out.csv")


@pytest.mark.parametrize(
    "notes",
    [pa.array([[1], [2]]), pa.array([{"a": 1}, {"a": 2}]), pa.array([b"a", b"\xff"])],
    ids=["list", "struct", "bytes"],
)
def test_a_column_that_is_no_text_is_refused_for_text_and_kept_in_parquet(
    predictor: Predictor, tmp_path: Path, notes: pa.Array
) -> None:
    pairs = pa.table({"user": [1, 2], "item": [3, 4], "notes": notes})
    pq.write_table(pairs, tmp_path / "p.parquet")
    with pytest.raises(DataError, match=r"column 'notes' \(.*\) .*text"):
        predict_file(predictor, tmp_path / "p.parquet", tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]
    predict_file(predictor, tmp_path / "p.parquet", tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet")["notes"].to_pylist() == notes.to_pylist()


def test_no_piece_cuts_rows_that_are_routed_together(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of 32 rows: a limit of 80 rows makes pieces of 2 * 32 = 64, and no score changes."""
    router = {"name": "expert_choice", "eval_group": 32}
    config = parse_config({"model": {**TINY_MODEL, "router": router}})
    artifact = load_artifact(run)
    torch.manual_seed(0)
    model = build_model(config, artifact.schema).eval()
    for table in (model.user_embedding, model.item_embedding):
        table.weight.data.mul_(20)  # so that which experts a row gets matters
    competing = Predictor(replace(artifact, model=model, config=config))
    users, items = [n % 60 + 1 for n in range(200)], [n % 40 + 1 for n in range(200)]
    source = tmp_path / "pairs.parquet"
    pd.DataFrame({"user": users, "item": items}).to_parquet(source)
    monkeypatch.setattr(predict, "ROWS_PER_PIECE", 80)
    given: list[int] = []
    predict_file(competing, source, tmp_path / "out.parquet", progress=given.append)
    assert given == [64] * 3 + [8]  # 200 = 3 * 64 + 8
    found = pd.read_parquet(tmp_path / "out.parquet")["watch"]
    assert found.tolist() == pytest.approx(competing.score(users, items).tasks["watch"].tolist())


TEXT = [(name, mark) for name in ("p.csv", "p.csv.gz", "p.TXT", "p.txt.gz") for mark in ",;|\t"]


@pytest.mark.parametrize(
    ("name", "delimiter"), [*TEXT, ("p.tsv.gz", "\t"), ("p.tab", "\t"), ("p.pq", "")]
)
def test_predict_reads_what_prepare_reads(
    predictor: Predictor, tmp_path: Path, name: str, delimiter: str
) -> None:
    path, notes = tmp_path / name, [note for note in AWKWARD if note]
    rows = [("user", "item", "note"), *((1, 2, note) for note in notes)]
    if name.endswith(".pq"):
        pq.write_table(pa.table(dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))), path)
    else:
        opened = gzip.open if name.endswith(".gz") else open
        with opened(path, "wt", newline="") as file:
            csv.writer(file, delimiter=delimiter).writerows(rows)
    (read,) = files.read(path, ["user", "item", "note"], BadRows())
    counts = predict_file(predictor, path, tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet", columns=read.columns.column_names)
    assert counts == {"rows": len(notes), "unseen_user": 0, "unseen_item": 0}
    assert found.to_pylist() == read.columns.to_pylist()


@pytest.mark.parametrize("target", ["out.csv", "out.tsv", "out.parquet"])
@pytest.mark.parametrize("source", ["p.csv", "no end.csv", "p.csv.gz", "p.parquet"])
def test_a_header_only_gives_a_header_only(
    predictor: Predictor, tmp_path: Path, source: str, target: str
) -> None:
    header = "user;item;note" + ("" if source.startswith("no") else "\n")
    if source.endswith(".parquet"):
        pd.DataFrame({"user": [1], "item": [2], "note": ["a"]})[:0].to_parquet(tmp_path / source)
    elif source.endswith(".gz"):
        (tmp_path / source).write_bytes(gzip.compress(header.encode()))
    else:
        (tmp_path / source).write_text(header)
    assert predict_file(predictor, tmp_path / source, tmp_path / target)["rows"] == 0
    if target.endswith(".parquet"):
        found = pd.read_parquet(tmp_path / target)
    else:
        found = pd.read_csv(tmp_path / target, sep="\t" if target.endswith("tsv") else ",")
    new = ["watch", "rating", "watch_calibrated", "unseen_user", "unseen_item"]
    assert (list(found.columns), len(found)) == (["user", "item", "note", *new], 0)


def test_a_gzip_file_that_ends_early_is_refused(predictor: Predictor, tmp_path: Path) -> None:
    packed = gzip.compress(b"user,item\n" + b"1,2\n" * 9)
    (tmp_path / "p.csv.gz").write_bytes(packed[:-9])
    with pytest.raises(DataError, match=r"p\.csv\.gz cannot be read: "):
        predict_file(predictor, tmp_path / "p.csv.gz", tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv.gz"]
