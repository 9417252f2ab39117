"""Ranked lists on raw ids: filters, candidates, mixes, neighbours, explanations, files."""

from __future__ import annotations

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from recsys_moe.cli import app
from recsys_moe.cli import recommend as commands
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.files.predict import predict_file
from recsys_moe.inference.files.recommend import recommend_file
from recsys_moe.inference.predictor import Predictor, Recommendation
from tests.conftest import Command, tells

EVERYTHING = 10**6


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return Predictor.load(run)


def items(ranked: list[Any]) -> list[Any]:
    return [entry.item for entry in ranked]


def test_a_mix_is_ranked_on_the_mix_itself(predictor: Predictor) -> None:
    ids = predictor.items.ids.to_pylist()
    tasks = predictor.score([5] * len(ids), ids).tasks
    mix = tasks["watch"] * tasks["rating"]
    [ranked] = predictor.recommend([5], k=6, score="watch*rating")
    best = mix.sort(descending=True, stable=True)
    assert items(ranked) == [ids[i] for i in best.indices[:6]]
    shown = [entry.scores["watch*rating"] for entry in ranked]
    assert shown == pytest.approx(best.values[:6].tolist(), abs=1e-5)
    [by_rating] = predictor.recommend([5], k=6, score="rating")
    expected = tasks["rating"].sort(descending=True, stable=True).indices[:6]
    assert items(by_rating) == [ids[i] for i in expected]
    with pytest.raises(ConfigError, match=r"one of .*got 'watch\+r"):
        predictor.recommend([5], score="watch+rating")
    with pytest.raises(ConfigError, match=r"got 'rating\*watch'; did you mean 'watch\*rating'"):
        predictor.recommend([5], score="rating*watch")


@pytest.fixture
def certain(run: Path) -> Predictor:
    """A model whose probabilities of `watch` are all 1 in float32, and its ratings all alike."""
    predictor = Predictor.load(run)
    watch, rating = (list(tower.children())[-1] for tower in predictor.artifact.model.towers)
    with torch.no_grad():
        watch.bias += 25
        rating.weight.zero_()
        biases = predictor.artifact.model.biases
        biases.user_UT[:, 1], biases.item_IT[:, 1] = 0, 0
    return predictor


@pytest.mark.parametrize("score", ["watch", "watch*rating"])
def test_certain_items_are_ranked_by_their_logits(certain: Predictor, score: str) -> None:
    size = certain.items.feature.size
    logits = certain.pair_logits(torch.full((size,), 4), torch.arange(size))[:, 0]
    user = certain.users.ids[4].as_py()
    everything = {"k": size, "score": score}
    [ranked], [open_] = (
        certain.recommend([user], exclude_seen=only_new, **everything) for only_new in (False, True)
    )
    index = certain.items.index(items(ranked))[0]
    assert {entry.scores["watch"] for entry in ranked} == {1.0}
    assert len(index) == size > 30
    assert (logits[index].diff() < 1e-5).all() and float(logits.std()) > 1e-3
    seen = set(certain.seen(4).tolist())
    expected = [i for i in index.tolist() if i not in seen]
    assert certain.items.index(items(open_))[0].tolist() == expected


def test_filters_leave_the_order_and_the_scores_of_what_passes(predictor: Predictor) -> None:
    [everything] = predictor.recommend([2], k=EVERYTHING)
    titles = {entry.item: entry.title for entry in everything}
    word = str(everything[7].title)
    [found] = predictor.recommend([2], k=EVERYTHING, where=[f"title={word}"])
    assert items(found) == [item for item in items(everything) if titles[item] == word]
    chosen = [str(item) for item in items(everything)[::3]]
    [found] = predictor.recommend([2], k=EVERYTHING, candidates=[*chosen, "unknown", chosen[0]])
    assert [str(item) for item in items(found)] == chosen
    by_item = {entry.item: entry.scores for entry in everything}
    for entry in found:
        assert entry.scores == pytest.approx(by_item[entry.item], abs=1e-5)
    assert predictor.recommend([2], candidates=[]) == [[]]


def test_scores_that_are_not_finite_are_refused(run: Path) -> None:
    predictor = Predictor.load(run)
    with torch.no_grad():
        predictor.artifact.model.item_embedding.weight[4] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        predictor.recommend([1], k=2)


def test_what_a_user_has_seen_is_what_the_training_rows_say(
    predictor: Predictor, prepared: Path
) -> None:
    rows = pd.read_parquet(prepared / "train")
    watched = rows[rows["watch"] == 1].groupby("user_index")["item_index"].agg(set)
    size = predictor.users.feature.size
    assert [set(predictor.seen(user).tolist()) for user in range(size)] == [
        watched.get(user, set()) for user in range(size)
    ]


def test_ids_must_be_a_list_and_k_positive(predictor: Predictor) -> None:
    with pytest.raises(TypeError, match="pass .'12'."):
        predictor.recommend("12")
    with pytest.raises(ValueError, match="k .*1, got 0"):
        predictor.recommend([1], k=0)
    with pytest.raises(ValueError, match="k .*1, got 0"):
        predictor.similar(1, k=0)
    with pytest.raises(TypeError, match="list .*got 'item>1'.*'item>1'"):
        predictor.recommend([1], where="item>1")
    with pytest.raises(DataError, match=r"ids .*got '\\udcff'"):
        predictor.recommend(["\udcff"])


def test_threads_that_share_a_cold_predictor_get_the_serial_answer(run: Path) -> None:
    users = list(range(1, 33))
    expected = [Predictor.load(run).recommend([user], k=5)[0] for user in users[:1]]
    shared = Predictor.load(run)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda user: shared.recommend([user], k=5)[0], users))
    serial = [shared.recommend([user], k=5)[0] for user in users]
    assert found == serial and found[:1] == expected


def test_similar_items_are_the_nearest_by_cosine(predictor: Predictor) -> None:
    table = predictor.artifact.model.item_embedding.weight[:-1].detach()
    unit = table / table.norm(dim=1, keepdim=True)
    place = 3
    cosine = unit @ unit[place]
    cosine[place] = -2
    expected = cosine.sort(descending=True, stable=True)
    ids = predictor.items.ids.to_pylist()
    ranked = predictor.similar(ids[place], k=4)
    assert items(ranked) == [ids[i] for i in expected.indices[:4]]
    found = [entry.scores["cosine"] for entry in ranked]
    assert found == pytest.approx(expected.values[:4].tolist(), abs=1e-6)
    assert len(predictor.similar(ids[place], k=EVERYTHING)) == len(ids) - 1
    with pytest.raises(DataError, match="item nothing was not seen in training"):
        predictor.similar("nothing")


def test_contributions_are_the_change_when_an_expert_is_left_out(predictor: Predictor) -> None:
    """Left out by hand: its hidden units are silenced by a bias that no input can overcome."""
    users, ids = [1, "nobody", 9], [2, 3, 4]
    explained = predictor.explain(users, ids)
    before = predictor.score(users, ids).tasks
    bias_EH = predictor.artifact.model.moe.experts.bias_EH
    for row, tasks in enumerate(explained):
        assert [len(shares) for shares in tasks.values()] == [2, 2]  # k = 2 chosen experts
        for name, shares in tasks.items():
            sizes = [abs(share.contribution) for share in shares]
            assert sizes == sorted(sizes, reverse=True)
            for share in shares:
                assert share.weight == 0.5  # MOESART at inference: 1/k each
                kept = bias_EH.detach().clone()
                with torch.no_grad():
                    bias_EH[share.expert] = -1e6
                    after = predictor.score(users, ids).tasks[name][row]
                    bias_EH.copy_(kept)
                old = before[name][row]
                change = old - after if name == "rating" else old.logit() - after.logit()
                assert share.contribution == pytest.approx(float(change), abs=2e-5)


# --- files and the command line


@pytest.mark.parametrize("source", ["users.txt", "users.csv", "users.parquet"])
@pytest.mark.parametrize("target", ["out.csv", "out.parquet", "out.jsonl"])
def test_a_file_of_users_becomes_a_file_of_lists(
    predictor: Predictor, tmp_path: Path, source: str, target: str
) -> None:
    users = ["3", "nobody", "1"]
    frame = pd.DataFrame({"note": ["a", "b", "c"], "user": users})
    if source.endswith(".txt"):
        (tmp_path / source).write_text("\n".join(users) + "\n")
    elif source.endswith(".csv"):
        frame.to_csv(tmp_path / source, index=False)
    else:
        frame.to_parquet(tmp_path / source)
    counts = recommend_file(predictor, tmp_path / source, tmp_path / target, 2)
    assert counts == {"users": 3, "unseen_user": 1}
    rows = read(tmp_path / target)
    assert [str(user) for user in rows["user"]] == [u for u in users for _ in range(2)]
    assert rows["unseen_user"].tolist() == [False, False, True, True, False, False]
    expected = predictor.recommend(users, 2)
    assert rows["item"].tolist() == [entry.item for ranked in expected for entry in ranked]
    watch = [entry.scores["watch"] for ranked in expected for entry in ranked]
    assert rows["watch"].tolist() == pytest.approx(watch)


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path)
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    users = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{**user, **item} for user in users for item in user["items"]]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("users.csv", "usr,x\n1,2\n", "'user' is missing ... 'usr'"),
        ("users.csv", "user,x\n1,2\n,3\n", "row 2 has no id"),
        ("users.txt", "", "contains no ids"),
        ("users.xlsx", "1\n", "--users ... .csv, .txt, .tsv, .tab, .parquet, .pq"),
        ("users.parquet", "no", "cannot be read"),
    ],
)
def test_a_users_file_that_cannot_be_used_leaves_nothing_behind(
    predictor: Predictor, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises((DataError, ConfigError)) as caught:
        recommend_file(predictor, tmp_path / name, tmp_path / "out.csv")
    assert tells(str(caught.value), message)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("score", [None, "watch*rating"])
@pytest.mark.parametrize("target", ["out.csv", "out.parquet", "out.jsonl"])
def test_filters_that_leave_nothing_leave_the_columns(
    predictor: Predictor, tmp_path: Path, target: str, score: str | None
) -> None:
    (tmp_path / "users.txt").write_text("1\n2\n")
    nothing = {"where": ["title=no such title"], "score": score}
    recommend_file(predictor, tmp_path / "users.txt", tmp_path / target, **nothing)
    if target == "out.jsonl":
        users = [json.loads(line) for line in (tmp_path / target).read_text().splitlines()]
        assert [(user["user"], user["items"]) for user in users] == [(1, []), (2, [])]
        return
    [one] = predictor.recommend([1], 1, score=score)
    columns = ["user", "unseen_user", "rank", "item", "title", *one[0].scores]
    rows = read(tmp_path / target)
    assert list(rows.columns) == columns and len(rows) == 0


def test_a_list_is_written_as_predict_writes_its_pairs(
    predictor: Predictor, tmp_path: Path
) -> None:
    """The same words for true and false, the digits of float32, ids with their blanks."""
    (tmp_path / "users.csv").write_text("user\n3\n 3 \n")
    recommend_file(predictor, tmp_path / "users.csv", tmp_path / "lists.csv", 1)
    with (tmp_path / "lists.csv").open(newline="") as file:
        lists = list(csv.DictReader(file))
    assert [row["user"] for row in lists] == ["3", " 3 "]
    pairs = "".join(f"{row['user']},{row['item']}\n" for row in lists)
    (tmp_path / "pairs.csv").write_text(f"user,item\n{pairs}")
    predict_file(predictor, tmp_path / "pairs.csv", tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open(newline="") as file:
        scores = list(csv.DictReader(file))
    assert [row["unseen_user"] for row in lists] == ["false", "true"]
    assert [row["unseen_user"] for row in scores] == ["false", "true"]
    for ours, theirs in zip(lists, scores, strict=True):
        assert float(ours["watch"]) == pytest.approx(float(theirs["watch"]), abs=1e-6)
        assert str(np.float32(ours["watch"])) == ours["watch"]


def call(*args: object) -> None:
    app([str(arg) for arg in args], standalone_mode=False)


def test_the_commands_rank_filter_and_explain_what_is_wrong(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "recsys_moe")
    (tmp_path / "some.txt").write_text("1\n2\n3\nunknown\n")
    options = ["--candidates", tmp_path / "some.txt", "--score", "watch*rating", "--json"]
    call("recommend", run, "--user", "nobody", *options)
    result = json.loads(capsys.readouterr().out)
    assert result["unseen_user"] and sorted(i["item"] for i in result["items"]) == [1, 2, 3]
    assert result["items"][0]["watch*rating"] >= result["items"][1]["watch*rating"]
    assert "ignored 1 of 4 candidates" in caplog.text
    call("similar", run, "--item", 2, "--k", 3)
    near = capsys.readouterr().out
    assert "cosine" in near and near.count("\n") == 4


@pytest.mark.parametrize("name", ["c.tsv", "c.CSV", "c.tab.gz", "c.pq"])
def test_candidates_are_read_from_every_kind_of_table(
    run: Path, command: Command, tmp_path: Path, name: str
) -> None:
    table = pd.DataFrame({"item": [3, 5], "more": [1, 1]})
    if name.endswith("pq"):
        table.to_parquet(tmp_path / name)
    else:
        separator = "," if name.endswith("CSV") else "\t"
        table.to_csv(tmp_path / name, index=False, sep=separator)
    words = ["recommend", run, "--user", "1", "--json", "--candidates"]
    found = json.loads(command(*words, tmp_path / name).out)
    assert found == json.loads(command(*words, "3,5").out)
    assert {entry["item"] for entry in found["items"]} == {3, 5}


def test_titles_cannot_command_a_terminal() -> None:
    entry = Recommendation(1, "7", "red\x1b[31m\nline\x07", {"watch": 0.5})
    lines = commands.table([entry], ["watch"]).splitlines()
    assert lines[1].endswith("red?[31m?line?") and len(lines) == 2


@pytest.mark.parametrize(
    ("code", "options", "message"),
    [
        (3, ("--user", 1, "--candidates", "nofile.tsv"), "--candidates nofile.tsv: no such file"),
        (2, ("--user", 1, "--candidates", " , "), "--candidates ... got ' , '"),
        (2, ("--user", " "), "--user must not be empty"),
        (2, ("--user", 1, "--overwrite"), "--overwrite needs --output"),
        (2, ("--users", "some.txt"), "--users FILE needs --output"),
        (2, ("--user", 1, "--where", "titel~a"), "did you mean 'title'?"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    code: int, options: tuple[Any, ...], message: str, run: Path, command: Command
) -> None:
    assert tells(command.fails(code, "recommend", run, *options), message)
