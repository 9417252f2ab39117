"""`evaluate` in the order of the log: histories, ties, and a list for each relevant row."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe.artifact.baselines import missed
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.past import Past
from recsys_moe.config.settings import parse_config
from recsys_moe.data.columns import StoredColumns
from recsys_moe.data.histories import read_log
from recsys_moe.inference.evaluation import ranking
from recsys_moe.inference.evaluation.ranking import evaluate_ranking, sample_ranking
from recsys_moe.inference.evaluation.ranking_wanted import wanted_rows
from recsys_moe.inference.predictor import Predictor
from recsys_moe.schema import ConfigError, Schema
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL, Command, tells

USERS, ITEMS, ROWS, LENGTH = 20, 25, 300, 4
SEQUENCE = {"sequence": "decay", "sequence_length": LENGTH, "sequence_blocks": 1}


def cli(*args: object) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "recsys_moe", *map(str, args)]
    return subprocess.run(asked, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """15 events of each user, two in each second, no item twice; `data`, and `run` on it."""
    place = tmp_path_factory.mktemp("timed")
    rows = [(n // 2 % USERS, n // 2 // USERS * 2 + n % 2, n // 2) for n in range(ROWS)]
    lines = [f"u{u},i{(3 * u + 7 * k) % ITEMS},1,{60 * t}" for u, k, t in rows]
    (place / "log.csv").write_text("\n".join(["user,item,watched,time", *lines]))
    names = ("--user", "user", "--item", "item", "--task", "watch:binary=watched")
    names += ("--timestamp", "time", "--protocol", "time", "--negatives", "per-user")
    done = cli("prepare", "table", "--input", place / "log.csv", *names, "--out", place / "data")
    assert done.returncode == 0, done.stderr
    config = {"model": TINY_MODEL | SEQUENCE, "trainer": {"max_epochs": 1, "batch_size": 64}}
    fit(parse_config(config), place / "data", place / "run")
    return place


class Row:
    """A relevant row of the test split, and what its user did before."""

    def __init__(self, user: int, item: int, event: int) -> None:
        self.user, self.item, self.event = user, item, event


def relevant_rows(data: Path) -> list[Row]:
    stored = StoredColumns(data, Schema.load(data), "test")
    found = []
    for number, rows in enumerate(stored.chunks()):
        event_N, _ = stored.times(number)
        for n in range(len(rows)):
            if rows.labels[n, 0] == 1:
                found.append(Row(int(rows.user[n]), int(rows.item[n]), int(event_N[n])))
    return found


def gain(predictor: Predictor, row: Row, data: Path, ties: str) -> float:
    """NDCG@5 of the list of one row: the naive twin, which reads the log anew."""
    log = read_log(data, Schema.load(data))
    own = log.user_P == row.user
    place_P = log.key_P[own] - row.user * log.places
    time = log.time_P[own][place_P == row.event]
    before_P = place_P < row.event if ties == "log" else log.time_P[own] < time
    items, user = log.item_P[own], torch.tensor([row.user])
    first = int(own.nonzero()[0])
    span = torch.tensor([[first, first + int(before_P.sum())]])
    events = log.windows(span, LENGTH)
    assert events.item[0, : int(events.place[0])].tolist() == items[before_P][-LENGTH:].tolist()
    logits_I = predictor.catalogue_logits(user, 0, None, events)[0]
    seen = {*items[before_P].tolist()} - {row.item}
    order = [i for i in logits_I.argsort(descending=True, stable=True).tolist() if i not in seen]
    rank = order.index(row.item)
    return 1 / math.log2(rank + 2) if rank < 5 else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("ties", ["strict", "log"])
def test_a_list_per_row_is_that_of_the_events_before_it(folder: Path, ties: str) -> None:
    found = evaluate_ranking(folder / "run", "test", k=5, past=Past(None, ties, "successive"))
    predictor = Predictor(load_artifact(folder / "run"))
    size = Schema.load(folder / "data").user.size
    rows = [row for row in relevant_rows(folder / "data") if row.user < size]
    gains = [gain(predictor, row, folder / "data", ties) for row in rows]
    assert len(gains) == found["relevant"] == 30  # a tenth of 300
    assert found["ndcg"] == pytest.approx(sum(gains) / len(gains))  # each row counts the same
    assert found["recall"] == found["hit_rate"] == sum(map(bool, gains)) / len(gains)
    assert (found["lists"], found["history"], found["tie_rule"]) == ("successive", "running", ties)


@pytest.mark.parametrize("ties", ["strict", "log"])
def test_last_lists_are_those_of_each_users_last_relevant_row(folder: Path, ties: str) -> None:
    found = evaluate_ranking(folder / "run", "test", k=5, past=Past(None, ties, "last"))
    predictor = Predictor(load_artifact(folder / "run"))
    size = Schema.load(folder / "data").user.size
    rows = [row for row in relevant_rows(folder / "data") if row.user < size]
    newest = {row.user: row.event for row in sorted(rows, key=lambda row: row.event)}
    gains: dict[int, list[float]] = {}
    for row in rows:  # events 0 and 1, 2 and 3, ... share a second: under `strict` either counts
        is_last = row.event == newest[row.user]
        if is_last or (ties == "strict" and row.event // 2 == newest[row.user] // 2):
            gains.setdefault(row.user, []).append(gain(predictor, row, folder / "data", ties))
    assert (found["lists"], found["relevant"]) == ("last", len(gains))
    assert len(gains) < 30  # some users have several rows among these
    low, high = (sum(map(one, gains.values())) / len(gains) for one in (min, max))
    assert low - 1e-6 <= found["ndcg"] <= high + 1e-6  # equal under `log`


def test_fit_judges_a_model_of_order_by_last_lists_of_some_users(folder: Path) -> None:
    whole = evaluate_ranking(folder / "run", "test", k=10, past=Past(lists="last"))
    users, items = whole["users"], Schema.load(folder / "data").item.size
    for most, wanted in ((10**6, users), (3 * items, 3)):
        found = sample_ranking(folder / "run", "test", most_pairs=most)
        assert found is not None
        assert (found["lists"], found["users"], found["of_users"]) == ("last", wanted, users)
        if wanted == users:
            assert found["ndcg"] == whole["ndcg"]
            assert (
                found["baselines"]["popularity"]["ndcg"]
                == (whole["baselines"]["popularity"]["ndcg"])
            )


def test_a_part_of_the_lists_has_the_figures_of_its_own(folder: Path) -> None:
    """Each list alone: what it sees and leaves out stays with it."""
    artifact = load_artifact(folder / "run")
    predictor, schema = Predictor(artifact), Schema.load(folder / "data")
    wanted, past = wanted_rows(schema, 5), Past(None, "log", "successive")
    rows = ranking._rows(predictor, folder / "data", schema, "test", wanted=wanted, past=past)
    logits = ranking._rankers(predictor, rows, wanted)[0]
    whole = ranking.top_lists(logits, rows, 5)
    kept_N = torch.arange(len(rows.users)) % 3 == 1
    assert torch.equal(ranking.top_lists(logits, rows.only(kept_N), 5), whole[kept_N])


def test_frozen_histories_are_those_without_later_splits(folder: Path) -> None:
    """All spans end where the events of train and val do; running ones go on."""
    data = folder / "data"
    schema, config = Schema.load(data), load_artifact(folder / "run").config
    known = read_log(data, schema, ("train", "val"))
    for past, sees_own in ((Past("frozen", "log"), False), (Past("running", "log"), True)):
        history = past.of(config, data, schema, "test")
        assert history is not None
        stored = StoredColumns(data, schema, "test", history=history)
        lengths = torch.cat([c.history.diff(dim=1)[:, 0] for c in stored.chunks()])
        users = torch.cat([c.user for c in stored.chunks()]).long()
        most = (known.first_U.diff()[users] - lengths).min()
        assert (int(most) < 0) == sees_own
        assert sees_own or bool((lengths == known.first_U.diff()[users]).all())


def test_shuffled_ties_are_printed_beside_the_order_of_the_log(folder: Path) -> None:
    found = evaluate_ranking(folder / "run", "test", k=5, past=Past(None, "shuffle", "successive"))
    by_log = evaluate_ranking(folder / "run", "test", k=5, past=Past(None, "log", "successive"))
    assert found["by_log"] == {name: by_log[name] for name in found["by_log"]}
    assert set(found["by_log"]) == {"ndcg", "recall", "mrr", "hit_rate"}


@pytest.mark.slow
def test_evaluate_takes_the_options_and_keeps_what_is_the_default(folder: Path) -> None:
    kept = folder / "run" / "evaluation" / "test.json"
    running = json.loads(cli("evaluate", folder / "run", "--json").stdout)
    assert (running["history"], running["tie_rule"]) == ("running", "strict")
    before = kept.read_text()
    lists = ("--ranking", "--lists", "successive", "--tie-rule", "shuffle", "--k", 5)
    done = cli("evaluate", folder / "run", "--history", "frozen", *lists)
    assert done.returncode == 0, done.stderr
    assert kept.read_text() == before
    assert "30 relevant items, a list for each, all 25 items ranked" in done.stdout
    assert "  history: frozen; tie rule: shuffle" in done.stdout
    assert "  by tie rule log: NDCG@5 0." in done.stdout


@pytest.mark.parametrize(
    "options",
    [(), ("--history", "frozen"), ("--tie-rule", "shuffle"), ("--ranking", "--lists", "last")],
)
def test_a_baseline_that_is_not_beaten_is_warned_of_whatever_rows_see(
    folder: Path,
    tmp_path: Path,
    command: Command,
    caplog: pytest.LogCaptureFixture,
    options: tuple[str, ...],
) -> None:
    """Baselines read no past, so they are the same."""
    run = shutil.copytree(folder / "run", tmp_path / "run")
    done = command("evaluate", run, "--json", *options)
    expected = [*missed(json.loads(done.out))]
    assert expected
    assert caplog.messages == expected


def test_a_model_without_events_has_lists_per_row_too(folder: Path, tmp_path: Path) -> None:
    config = {"model": TINY_MODEL, "trainer": {"max_epochs": 1, "batch_size": 64}}
    fit(parse_config(config), folder / "data", tmp_path / "run")
    past = Past(None, "shuffle", "successive")
    found: dict[str, Any] = evaluate_ranking(tmp_path / "run", "test", past=past)
    assert (found["relevant"], "history" in found) == (30, False)
    with pytest.raises(ConfigError, match="--history running needs a model that reads events"):
        evaluate_ranking(tmp_path / "run", "test", past=Past("running"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--history", "past"), "--history must be running or frozen, got 'past'"),
        (("--tie-rule", "none"), "--tie-rule must be strict, log or shuffle, got 'none'"),
        (("--ranking", "--lists", "all"), "--lists must be user, last or successive, got 'all'"),
        (("--lists", "successive"), "--lists needs --ranking; pass both"),
        (("--history", "frozen", "--split", "train"), "--history frozen needs a split with one"),
    ],
)
def test_wrong_options_are_refused(
    folder: Path, command: Command, options: tuple[str, ...], said: str
) -> None:
    assert said in command.fails(2, "evaluate", folder / "run", *options)


def test_data_without_an_order_of_events_are_refused(
    run: Path, prepared: Path, command: Command
) -> None:
    said = command.fails(2, "evaluate", run, "--ranking", "--lists", "successive")
    assert tells(said, f"--lists successive needs ... column event ... got {prepared} ... prepare")
    said = command.fails(2, "evaluate", run, "--history", "frozen")
    assert tells(said, "--history frozen needs a model that reads events ... model.sequence: none")
