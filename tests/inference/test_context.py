"""Context features of raw requests: what is scored, ranked, explained, written and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from recsys_moe.data.columns import load_columns
from recsys_moe.errors import DataError
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.predictor import ColdUser, Predictor
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema
from tests.conftest import Command
from tests.context import CONTEXT, raw

EVENING = {"hour": "3h", "price": 12.5}
NEW = ColdUser({"age": 45}, {3: 5.0})


@pytest.fixture(scope="module")
def predictor(context_run: Path) -> Predictor:
    return Predictor.load(context_run)


@pytest.fixture(scope="module")
def rows(contextual: Path) -> Any:
    return load_columns(contextual, Schema.load(contextual), "test", CONTEXT).take(slice(0, 60))


def ids(predictor: Predictor, rows: Any) -> tuple[list[Any], list[Any]]:
    pairs = (predictor.users, rows.user), (predictor.items, rows.item)
    users, items = (
        [one.ids[i].as_py() if i < one.feature.size else "?" for i in index.tolist()]
        for one, index in pairs
    )
    return users, items


def test_raw_values_are_scored_as_the_rows_of_prepared_data(
    predictor: Predictor, rows: Any
) -> None:
    """Known, unknown and missing hours and prices."""
    assert rows.context.isnan().any(0).all() and (rows.context[:, 0] == 4).any()
    scores = predictor.score(*ids(predictor, rows), context=raw(rows.context))
    with torch.inference_mode():
        logits_BT = predictor.artifact.model(rows.request).logits_BT
    torch.testing.assert_close(scores.tasks["watch"], logits_BT[:, 0].sigmoid())
    without = predictor.score(*ids(predictor, rows))
    assert (without.tasks["watch"] - scores.tasks["watch"]).abs().max() > 1e-4


def test_one_context_holds_for_all_rows(predictor: Predictor) -> None:
    one = predictor.score([1, 2], [3, 4], context=EVENING).tasks["rating"]
    each = predictor.score([1, 2], [3, 4], context=[EVENING, EVENING]).tasks["rating"]
    assert torch.equal(one, each)
    mixed = predictor.score([1, 2], [3, 4], context=[EVENING, {}]).tasks["rating"]
    bare = predictor.score([1, 2], [3, 4]).tasks["rating"]
    assert mixed.tolist() == [one[0], bare[1]]


@pytest.mark.parametrize("whom", [5, NEW, "nobody"], ids=["known", "new", "unknown"])
def test_a_ranking_in_a_context_is_that_of_the_scores_of_all_items(
    predictor: Predictor, whom: Any
) -> None:
    every = predictor.items.ids.to_pylist()
    [ranked] = predictor.recommend([whom], len(every), context=EVENING)
    scores = predictor.score([whom] * len(every), every, context=EVENING)
    expected = dict(zip(every, scores.tasks["watch"].tolist(), strict=True))
    assert [one.scores["watch"] for one in ranked] == sorted(
        (pytest.approx(value, abs=1e-6) for value in expected.values()),
        key=lambda one: -one.expected,
    )
    for one in ranked:
        assert one.scores["watch"] == pytest.approx(expected[one.item], abs=1e-6)
    [other] = predictor.recommend([whom], len(every))
    assert [one.scores for one in other] != [one.scores for one in ranked]


def test_each_user_may_have_a_context(predictor: Predictor) -> None:
    lists = predictor.recommend([5, 5], context=[EVENING, {"hour": "0h"}])
    alone = [predictor.recommend([5], context=one)[0] for one in (EVENING, {"hour": "0h"})]
    assert [[one.item for one in some] for some in lists] == [
        [one.item for one in some] for some in alone
    ]


def test_a_user_vector_in_a_context_is_the_sum_of_both(predictor: Predictor) -> None:
    """Which keeps rankings exact: the item's half of the first layer stays as it is."""
    model = predictor.artifact.model
    user_B, context_BC = torch.tensor([5]), torch.tensor([[2.0, 0.5]])
    vector_BD = model.encode_users(Request(user_B, user_B, context_BC))
    table_RD = model.encoders.context.table_RD  # type: ignore[union-attr]
    expected = model.user_embedding.weight[5] + table_RD[2] + 0.5 * table_RD[5]
    torch.testing.assert_close(vector_BD[0], expected)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"our": "3h"}, "unknown context feature 'our'; did you mean 'hour'"),
        ({"price": "cheap"}, "feature 'price' must be a finite number, got 'cheap'"),
        ({"hour": ["0h"]}, "feature 'hour' must be text or a whole number"),
        ([{}, {}, {}], "context must be of all rows or one for each of 2, got 3"),
    ],
)
def test_a_context_that_cannot_be_is_refused(
    context: Any, message: str, predictor: Predictor
) -> None:
    with pytest.raises(DataError, match=message):
        predictor.score([1, 2], [3, 4], context=context)
    with pytest.raises(DataError, match=message):
        predictor.recommend([1, 2], context=context)


def test_a_model_without_context_refuses_one(run: Path) -> None:
    bare = Predictor.load(run)
    with pytest.raises(DataError, match="no context features, got 'hour'; .*model.context"):
        bare.score([1], [2], context={"hour": "3h"})
    assert bare.score([1], [2], context={}).tasks.keys() == {"watch", "rating"}


def test_context_features_are_attributed(predictor: Predictor) -> None:
    """The logit minus that without the feature."""
    [of_pair] = predictor.attributions([5], [7], 9, context=EVENING)
    found = {one.name: one for one in of_pair["rating"] if one.entity == "context"}
    assert {name: one.value for name, one in found.items()} == {"hour": "3h", "price": 12.5}
    whole, without = (
        predictor.score([5], [7], context=one).tasks["rating"] for one in (EVENING, {"price": 12.5})
    )
    change = float(whole - without)
    assert found["hour"].contribution == pytest.approx(change, abs=1e-5) and change
    assert found["hour"].words == "hour=3h"
    assert predictor.explain([5], [7], context=EVENING) != predictor.explain([5], [7])


SUFFIXES = [".csv", ".parquet"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_predict_reads_the_columns_of_a_file(
    suffix: str, predictor: Predictor, rows: Any, tmp_path: Path
) -> None:
    users, items = ids(predictor, rows)
    frame = pd.DataFrame({"user": users, "item": items}).astype(str)
    frame = frame.join(pd.DataFrame(raw(rows.context), dtype=object))
    if suffix == ".csv":
        frame.to_csv(tmp_path / "in.csv", index=False)
    else:
        frame.astype({"price": float}).to_parquet(tmp_path / "in.parquet", index=False)
    counts = predict_file(predictor, tmp_path / f"in{suffix}", tmp_path / "out.parquet")
    assert counts["unknown_context"] == int((rows.context[:, 0] == 4).sum()) > 0
    expected = predictor.score(users, items, context=raw(rows.context)).tasks["watch"]
    found = pd.read_parquet(tmp_path / "out.parquet")["watch"]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    with pytest.raises(TypeError, match="context must not be given with a DataFrame"):
        predictor.score(frame, context=EVENING)
    scored = predictor.score(frame)
    np.testing.assert_allclose(scored["watch"], expected.numpy(), atol=1e-6)


def test_predict_warns_of_a_missing_column_and_names_the_row_of_a_wrong_cell(
    predictor: Predictor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in.csv").write_text("user,item,price\n1,2,\n1,2,4\n")
    predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv")
    assert "in.csv has no column 'hour': scored without this context" in caplog.text
    (tmp_path / "in.csv").write_text("user,item,price\n1,2,3\n1,2,x\n")
    with pytest.raises(DataError, match=r"in.csv: row 2: feature 'price' must be a finite number"):
        predict_file(predictor, tmp_path / "in.csv", tmp_path / "other.csv")
    assert not (tmp_path / "other.csv").exists()
    table = pa.table({"user": [1], "item": [2], "hour": [["0h"]]})
    with pytest.raises(DataError, match="column 'hour' must hold single values"):
        predictor.context.read_columns(table)


def test_recommend_takes_a_context(
    command: Command,
    context_run: Path,
    predictor: Predictor,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    options = ("--context", "hour=3h", "--context", "price=12.5", "--k", 5)
    done = command("recommend", context_run, "--user", 5, *options, "--why")
    [expected] = predictor.recommend([5], 5, context=EVENING)
    assert [line.split()[1] for line in done.out.splitlines() if line.split()[0].isdigit()] == [
        str(one.item) for one in expected
    ]
    assert "hour=3h" in done.out
    (tmp_path / "users.txt").write_text("5\n6\n")
    names = ("--users", tmp_path / "users.txt", "--output", tmp_path / "lists.csv")
    assert command("recommend", context_run, *names, *options).exit_code == 0
    lists = pd.read_csv(tmp_path / "lists.csv")
    assert lists.loc[lists.user == 5, "item"].tolist() == [one.item for one in expected]
    assert command("recommend", context_run, "--user", 5, "--context", "hour=9h").exit_code == 0
    assert "ignored unknown categories of hour: '9h'" in caplog.text


REFUSED = {
    "no value": (2, ("--context", "hour"), "--context must be NAME=VALUE, as in device=tv"),
    "twice": (2, ("--context", "hour=1h", "--context", "hour=2h"), "name 'hour' once; omit one"),
    "unknown": (3, ("--context", "our=1h"), "unknown context feature 'our'; did you mean 'hour'"),
    "no number": (3, ("--context", "price=a"), "feature 'price' must be a finite number"),
}


@pytest.mark.parametrize(("code", "words", "message"), REFUSED.values(), ids=REFUSED)
def test_recommend_refuses_in_a_line(
    code: int, words: tuple[str, ...], message: str, command: Command, context_run: Path
) -> None:
    assert message in command.fails(code, "recommend", context_run, "--user", 5, *words)


def test_lists_are_ranked_in_the_context_of_the_relevant_row(
    context_run: Path, contextual: Path, predictor: Predictor
) -> None:
    """By loops over the positives of the test rows: the mean over the contexts of a user, then over
    users."""
    found = evaluate_ranking(context_run, "test", k=5)
    schema = Schema.load(contextual)
    seen: dict[int, set[int]] = {}
    for split in ("train", "val"):
        one = load_columns(contextual, schema, split)
        positive = one.take(one.labels[:, 0] == 1)
        for user, item in zip(positive.user.tolist(), positive.item.tolist(), strict=True):
            seen.setdefault(user, set()).add(item)
    test = load_columns(contextual, schema, "test", CONTEXT)
    wanted: dict[tuple[Any, ...], set[int]] = {}
    for user, item, label, context in zip(
        test.user.tolist(),
        test.item.tolist(),
        test.labels[:, 0].tolist(),
        test.context.nan_to_num(-9).tolist(),
        strict=True,  # type: ignore[union-attr]
    ):
        if label == 1:
            wanted.setdefault((user, *context), set()).add(item)
    hits: dict[int, list[float]] = {}
    for (user, *context), items in wanted.items():
        value_UC = torch.tensor([context]).masked_fill(torch.tensor([context]) == -9, torch.nan)
        logits_N = predictor.catalogue_logits(torch.tensor([user]), 0, value_UC)[0]
        order = logits_N.sort(descending=True, stable=True).indices.tolist()
        top = [item for item in order if item not in seen.get(user, set())][:5]
        hits.setdefault(user, []).append(float(any(item in items for item in top)))
    assert max(map(len, hits.values())) > 1
    expected = np.mean([np.mean(values) for values in hits.values()])
    assert found["hit_rate"] == pytest.approx(expected)
    assert found["users"] == len(hits)
