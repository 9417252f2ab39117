"""`prepare table` in pieces: the bytes of the preparation in memory, in bounded memory, on Dask."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from data_prep import table
from data_prep.split import randomness
from data_prep.table import engines, pieces, tasks
from data_prep.table import stream as table_stream
from data_prep.write import parts
from recsys_moe.schema import SPLITS, ConfigError, DataError
from tests.data_prep.samples import IDS, columns, frame, hashes, raw_rows, save

ROWS = 3000
HASH = {**IDS, "protocol": "hash"}


def log(rows: int = ROWS, users: int = 120) -> pd.DataFrame:
    """Long-tailed users and items, some pairs twice, a rating where clicked, sometimes a time."""
    rng = np.random.default_rng(3)
    user = (users * rng.random(rows) ** 2).astype(int)
    item = (200 * rng.random(rows) ** 2).astype(int)
    clicked = rng.integers(0, 2, rows)
    return pd.DataFrame(
        {
            "who": user * 7,
            "what": [f"i{n:04d}" for n in item],
            "clicked": clicked,
            "stars": np.where(clicked == 1, rng.integers(1, 6, rows), np.nan),
            "when": np.where(rng.random(rows) < 0.5, 1_000_000 + np.arange(rows), np.nan),
        }
    )


FEATURES = {
    "user_feature": ["gender:categorical=sex", "age:numeric=years"],
    "item_feature": ["genres:multi=kinds:sep=;"],
}
CONTEXT = ["hour:categorical=hour", "tags:multi=tags", "price:numeric=price"]


def with_context(data: pd.DataFrame) -> pd.DataFrame:
    """Prices of many sizes, whose sums in double precision would depend on their order."""
    rng, rows = np.random.default_rng(5), len(data)
    tags = ["|".join(sorted({f"t{n}" for n in rng.integers(0, 9, k)})) for k in range(4)]
    return data.assign(
        hour=rng.integers(0, 24, rows),
        tags=rng.choice(np.array(tags, dtype=object), rows),
        price=np.where(rng.random(rows) < 0.1, np.nan, np.exp(rng.normal(0, 12, rows))),
    )


def entities(folder: Path, data: pd.DataFrame) -> dict[str, Path]:
    """Of some users none, of some items no category."""
    who, what = np.unique(data["who"]), np.unique(data["what"])
    users = pd.DataFrame({"who": who, "sex": np.where(who % 2, "f", "m"), "years": who % 61 + 0.1})
    kinds = [f"k{n % 5};k{n % 7}" if n % 3 else "" for n in range(len(what))]
    return {
        "user_features": save(users.iloc[3:], folder / "users.parquet"),
        "item_features": save(pd.DataFrame({"what": what, "kinds": kinds}), folder / "items.csv"),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files: Parquet with small row groups, CSV, packed TSV."""
    data, place = with_context(log()), tmp_path / "log"
    save(data.iloc[1200:2000], place / "b.csv")
    save(data.iloc[2000:], place / "c.tsv.gz")
    data.iloc[:1200].to_parquet(place / "a.parquet", index=False, row_group_size=250)
    return place


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pieces, bins, row groups and parts, although there are few rows."""
    monkeypatch.setattr(pieces, "ROWS", 100)
    monkeypatch.setattr(pieces, "TEXT_BLOCK", 4000)
    monkeypatch.setattr(parts, "ROWS_PER_GROUP", 300)
    monkeypatch.setattr(parts, "ROWS_PER_PART", 900)
    monkeypatch.setattr(table_stream, "ROW_BYTES", 400)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("duplicates", "negatives"),
    [("first", "none"), ("last", "per-user"), ("keep", "none"), ("keep", "per-user")],
)
def test_every_engine_writes_the_bytes_of_the_one_in_memory(
    duplicates: str, negatives: str, folder: Path, small: None, tmp_path: Path
) -> None:
    options = {**HASH, "duplicates": duplicates, "negatives": negatives, "timestamp": "when"}
    options |= FEATURES | entities(tmp_path / "about", log()) | {"context": CONTEXT}
    others = ["level:ordinal=stars", "times:count=stars", "seconds:duration=stars"]
    options["tasks"] = [*HASH["tasks"], *others]  # type: ignore[misc]
    schema = table.prepare(tmp_path / "memory", input=folder, **options)
    expected = hashes(tmp_path / "memory")
    assert len([name for name in expected if name.startswith("train/")]) > 1
    assert "features.parquet" in expected
    for name, more in (
        ("stream", {"max_memory_mb": 3}),  # 7 or more bins
        ("one bin", {"max_memory_mb": 4096}),
        ("dask", {"max_memory_mb": 3, "engine": "dask", "scheduler": "synchronous"}),
    ):
        found = table.prepare(
            tmp_path / name, input=folder, **{**options, "engine": "stream", **more}
        )
        assert found == schema
        assert hashes(tmp_path / name) == expected, name
    assert {path.name for path in tmp_path.iterdir()} == {
        "log", "about", "memory", "stream", "one bin", "dask"
    }  # fmt: skip


def test_dask_threads_write_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    options = {**HASH, "duplicates": "first", "negatives": "per-user", "input": folder}
    table.prepare(tmp_path / "memory", **options)
    table.prepare(tmp_path / "dask", engine="dask", scheduler="threads", **options)
    assert hashes(tmp_path / "dask") == hashes(tmp_path / "memory")


def test_a_pair_keeps_its_split_when_the_data_grow(tmp_path: Path) -> None:
    data = log().drop_duplicates(["who", "what"])
    halves = []
    for name, part in (("half", data.iloc[: len(data) // 2]), ("all", data)):
        out = tmp_path / name
        table.prepare(out, input=save(part, tmp_path / f"{name}.csv"), **HASH)
        rows = raw_rows(out)
        halves.append({row[:2]: split for split in SPLITS for row in rows[split]})
    half, everything = halves
    assert {pair: everything[pair] for pair in half} == half


def test_the_order_mixes_users(tmp_path: Path) -> None:
    data = log().drop_duplicates(["who", "what"]).sort_values("who")
    table.prepare(tmp_path / "o", input=save(data, tmp_path / "x.csv"), **HASH)
    users = np.array(columns(tmp_path / "o", "train")["user_index"])
    halves = np.split(users[: len(users) // 2 * 2], 2)
    assert abs(halves[0].mean() - halves[1].mean()) < 5  # sorted by user it would be 50 and more


@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_rows_of_the_log_that_look_like_drawn_ones_are_counted(engine: str, tmp_path: Path) -> None:
    """Of 40 with the label 0, those without stars: 10. None of them: the report says nothing."""
    n = np.arange(160)
    data = pd.DataFrame({"who": n % 8, "what": n // 8, "clicked": (n >= 40) * 1, "stars": 2.0})
    source = save(data, tmp_path / "x.csv")
    asked = {"negatives": "per-user", "engine": engine, **HASH}
    assert "logged_negatives" not in table.prepare(tmp_path / "o", input=source, **asked).report
    data.loc[:9, "stars"] = np.nan
    source = save(data, tmp_path / "y.csv")
    assert table.prepare(tmp_path / "p", input=source, **asked).report["logged_negatives"] == 10


def test_hashes_stay_what_they_are() -> None:
    """Another value here gives other splits for the same data."""
    assert randomness.of_ids(pa.array(["7"])).tolist() == randomness.of_ids(pa.array([7])).tolist()
    one, two = randomness.of_ids(pa.array(["7", "u1"])).tolist()
    assert (one, two) == (639464881952108352, 2984610181246591869)
    assert randomness.mix(
        randomness.key(0, "split"), randomness.of_ids(pa.array([7]))
    ).tolist() == [9194880853406468119]


REFUSED = {
    "paper": ({"protocol": "paper"}, "--engine stream needs --protocol hash, got paper"),
    "split files": (
        {"input": None, **dict.fromkeys(SPLITS, Path("x.csv")), "protocol": "paper"},
        "--engine stream needs --input",
    ),
    "engine": ({"engine": "strem"}, "got 'strem'; did you mean 'stream'"),
    "memory": ({"max_memory_mb": 0}, "--max-memory-mb must be at least 1, got 0"),
    "memory in memory": (
        {"engine": "memory", "max_memory_mb": 2048},
        "--max-memory-mb needs --engine stream or dask, got memory",
    ),
    "scheduler of stream": (
        {"scheduler": "processes"},
        "--scheduler needs --engine dask, got stream",
    ),
    "scheduler": (
        {"engine": "dask", "scheduler": "thread"},
        "--scheduler must be .*got 'thread'; did you mean 'threads'",
    ),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_an_engine_cannot_do_is_refused_with_its_remedy(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    source = save(frame(), tmp_path / "x.csv")
    given = {"input": source, **HASH, "engine": "stream", **options}
    with pytest.raises(ConfigError, match=message):
        table.prepare(tmp_path / "out", **given)
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_too_little_memory_is_refused_with_what_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_stream, "ROW_BYTES", 1 << 28)
    source = save(frame(), tmp_path / "x.parquet")
    # 40 rows of 2**28 bytes, twice, in at most 1024 bins: 20 MB
    with pytest.raises(ConfigError, match="must .*got 1"):
        table.prepare(tmp_path / "o", input=source, **HASH, engine="stream", max_memory_mb=1)


@pytest.mark.parametrize(
    ("absent", "scheduler"), [("dask", "processes"), ("distributed", "tcp://localhost:8786")]
)
def test_without_dask_the_extra_is_named(
    absent: str, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == absent]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, absent, None)
    message = rf'needs {absent}; pip install "recsys-moe\[cluster\]"'
    with pytest.raises(ConfigError, match=message):
        engines.mapper("dask", scheduler)


def test_rows_count_from_the_front_of_the_file(small: None, tmp_path: Path) -> None:
    data = log(900)
    data.loc[850, "clicked"] = 3
    data.to_parquet(tmp_path / "x.parquet", index=False, row_group_size=350)
    with pytest.raises(DataError, match=r"x\.parquet, row 851: clicked"):
        table.prepare(tmp_path / "out", input=tmp_path / "x.parquet", engine="stream", **HASH)


WRONG = {
    "repeated": ("x.csv", None, "user 'u2' and item '004' have several rows; pass --duplicates"),
    "fields": ("x.csv", b"who,what,clicked,stars\nu,i,1\n", "cannot be read in pieces .*engine"),
    "no column": ("x.csv", b"who,what,click,stars\n", "'clicked' is missing.*mean 'click'"),
    "no rows": ("x.csv", b"who,what,clicked,stars\n", "has no rows"),
    "parquet": ("x.parquet", b"PAR1 and so on", "is not a whole Parquet file"),
    "gzip": ("x.csv.gz", b"who,what", "cannot be read in pieces"),
}


@pytest.mark.parametrize(("name", "content", "message"), WRONG.values(), ids=WRONG)
def test_a_file_that_cannot_be_used_is_named(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    source = tmp_path / name
    if content is None:
        save(pd.concat([frame(), frame().iloc[[2]]]), source)
    else:
        source.write_bytes(content)
    with pytest.raises(DataError, match=message) as failure:
        table.prepare(tmp_path / "out", input=source, engine="stream", **HASH)
    assert "\n" not in str(failure.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_ids_of_many_pieces_are_in_the_order_of_their_first_places_and_hashed_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unique, hashed = pc.unique, []
    monkeypatch.setattr(tasks, "LEAST_WAITING", 0)
    monkeypatch.setattr(tasks.pc, "unique", lambda ids: hashed.append(len(ids)) or unique(ids))
    distinct = tasks.Distinct(pa.array([], pa.string()))
    for number in range(300):
        distinct.add(pa.array([str(number), str(number // 2)]))
    assert distinct.found().to_pylist() == [str(number) for number in range(300)]
    # Pieces one by one: 300^2 / 2 known ids, again and again. Doubling: at most some times 600.
    assert sum(hashed) < 5 * 600


def test_long_ids_are_joined_before_an_array_of_texts_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "MOST_BYTES", 1000)
    distinct, part = tasks.Distinct(pa.array([], pa.string())), pa.array(["x" * 300])
    most = 0
    for _ in range(20):
        distinct.add(part)
        most = max(most, distinct.known.nbytes + sum(one.nbytes for one in distinct.parts))
    assert len(distinct.found()) == 1 and most <= 1000
