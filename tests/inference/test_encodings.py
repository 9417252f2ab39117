"""Files of a user's own in another encoding: predict reads it, the others name the line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.cold_start.new_items import read_items
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.files.recommend import read_ids
from recsys_moe.inference.predictor import Predictor

PAIRS = "user,item,note\n1,2,Zo\u00eb\n3,4,na\u00efve\n"


def test_predict_reads_the_encoding_that_is_named_and_writes_utf_8(
    run: Path, tmp_path: Path
) -> None:
    predictor, source = Predictor.load(run), tmp_path / "pairs.csv"
    for encoding in ("utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-16-be", "cp1252"):
        source.write_bytes(PAIRS.encode(encoding))
        out = tmp_path / f"{encoding}.csv"
        assert predict_file(predictor, source, out, encoding=encoding)["rows"] == 2
        assert out.read_bytes() == (tmp_path / "utf-8.csv").read_bytes()
    assert pd.read_csv(out)["note"].tolist() == ["Zo\u00eb", "na\u00efve"]
    with pytest.raises(ConfigError, match="--encoding .*'latin-9000'"):
        predict_file(predictor, source, tmp_path / "o.csv", encoding="latin-9000")


def test_predict_names_the_line_and_the_option(run: Path, tmp_path: Path) -> None:
    predictor, source = Predictor.load(run), tmp_path / "pairs.csv"
    for encoding, said in (("latin-1", "line 2: byte 0xeb .*--encoding"), ("utf-16", "UTF-16")):
        source.write_bytes(PAIRS.encode(encoding))
        with pytest.raises(DataError, match=rf"pairs\.csv.* {said}"):
            predict_file(predictor, source, tmp_path / "o.csv")


def test_files_of_ids_and_items_name_the_line_and_no_option(tmp_path: Path) -> None:
    for name in ("users.txt", "users.csv"):
        (tmp_path / name).write_bytes("user\na\nZo\u00eb\n".encode("latin-1"))
        with pytest.raises(DataError, match=r"--users .*, line 3: byte 0xeb") as failure:
            list(read_ids(tmp_path / name, "user", "--users"))
        assert "--encoding" not in str(failure.value)
    (tmp_path / "items.csv").write_bytes("item,title\n1,Zo\u00eb\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"items\.csv, line 2: byte 0xeb") as failure:
        read_items(tmp_path / "items.csv")
    assert "--encoding" not in str(failure.value)
