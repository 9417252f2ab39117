"""model.time_features from training to a served list."""

from __future__ import annotations

import csv
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from recsys_moe import prepare
from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.config.past import Past
from recsys_moe.config.settings import parse_config
from recsys_moe.data.histories import read_log
from recsys_moe.data.rows import Columns
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.inference.predictor import Event, Predictor
from recsys_moe.schema import SPLITS, Schema
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from recsys_moe.train.warm_start import open_start
from tests.conftest import SEQUENCE_MODEL, TINY_MODEL, Command
from tests.timed import prepared

LATER = 1_700_001_500
"""After the log of tests/timed.py."""


def clicks(rule: str, out: Path) -> Path:
    """Rows whose label follows from the hour alone, or from the age of the item alone."""
    rng, rows, day = np.random.default_rng(0), [], 86_400
    for item in range(60):
        first, users = int(rng.integers(200 * day)), rng.permutation(100)
        for number in range(50):
            time = first + (0 if number == 0 else int(rng.integers(20 * day)))
            new = time - first < 7 * day
            label = new if rule == "age" else time // 3600 % 24 < 12
            rows.append((f"u{users[number]}", f"i{item}", int(label or number == 0), time))
    frame = pd.DataFrame(rows, columns=["user", "item", "click", "time"])
    ids = {"user": "user", "item": "item", "timestamp": "time"}
    prepare(frame, **ids, tasks=["click:binary=click"], protocol="time", out=out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["hour", "age"])
def test_a_task_that_only_the_time_can_solve(rule: str, tmp_path: Path) -> None:
    data, found = clicks(rule, tmp_path / "data"), {}
    for names in ("none", rule):
        model = {"name": "two_tower", "embedding_dim": 8, "rank": 8, "time_features": names}
        trainer = {"max_epochs": 8, "batch_size": 256, "logger": "csv"}
        config = {"model": model, "optim": {"lr": 0.03}, "trainer": trainer}
        fit(parse_config(config), data, tmp_path / names)
        result = evaluate_artifact(tmp_path / names, "test", None)
        found[names] = result["tasks"]["click"]["auc"]
    assert found[rule] > 0.95
    assert found["none"] < 0.75


@pytest.fixture(scope="module")
def timely(timed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that reads the time and the events before a row. Read only."""
    out = tmp_path_factory.mktemp("timely") / "run"
    fit(config(), timed, out)
    return out


def in_memory(data: RecDataModule, split: str) -> Columns:
    rows = data.rows(split)
    assert isinstance(rows, Columns)
    return rows


def config(**settings: Any) -> Any:
    model = {**TINY_MODEL, **SEQUENCE_MODEL, "time_features": "all", **settings}
    trainer = {"max_epochs": 2, "batch_size": 128, "logger": "csv"}
    return parse_config({"model": model, "optim": {"lr": 0.02}, "trainer": trainer})


def test_lists_hold_the_scores_of_their_pairs_at_their_time(timely: Path) -> None:
    predictor = Predictor.load(timely)
    tasks = {}
    for time in (LATER - 1_000, LATER - 600, None):  # ages that training has seen
        at = {} if time is None else {"time": time}
        [ranked] = predictor.recommend(["u1"], 5, context=at)
        ids = [one.item for one in ranked]
        scores = predictor.score(["u1"] * 5, ids, context=at).tasks["watch"]
        assert scores.tolist() == pytest.approx([one.scores["watch"] for one in ranked], rel=1e-4)
        tasks[time] = predictor.score(["u1"], ["i1"], context=at).tasks["watch"]
    assert len({float(one) for one in tasks.values()}) == 3
    each = predictor.score(["u1"] * 3, ["i1"] * 3, context=[{"time": one} for one in tasks])
    assert each.tasks["watch"].tolist() == pytest.approx([float(one) for one in tasks.values()])


def test_what_a_model_folder_scores_after_the_log_is_what_training_would_read(
    timely: Path, timed: Path
) -> None:
    """The last row of each user in `val` is asked of the folder as of the data, at its time, when
    no event of training or validation follows."""
    data = RecDataModule(timed, config())
    predictor, rows = Predictor.load(timely), in_memory(data, "test")
    assert rows.time is not None
    first = rows.part(slice(0, 1))
    items = predictor.items.ids.to_pylist()
    user = predictor.users.ids.to_pylist()[int(first.user)]
    moment = predictor._past(predictor.resolve([user]), None, rows.time[:1])["moment"]
    served = moment.about(first.item) if moment else None
    wanted = first.moment()
    assert served is not None and wanted is not None
    assert torch.equal(served.time, wanted.time)
    assert float(served.events) <= float(wanted.events) <= 8
    assert float(served.age) == pytest.approx(float(wanted.age))
    assert str(items[int(first.item)]).startswith("i")


def test_a_request_about_the_past_reads_no_event_from_its_time_on(timely: Path) -> None:
    """Stored ones, observed ones and those of the request; popularity is then unknown."""
    predictor, changed = Predictor.load(timely), Predictor.load(timely)
    events = changed.artifact.events
    user = next(u for u in range(60) if events["first"][u + 1] - events["first"][u] >= 8)
    [name] = predictor.users.texts(torch.tensor([user]))
    own = slice(int(events["first"][user]), int(events["first"][user + 1]))
    at = int(events["time"][own][-3])
    late_P = torch.zeros(len(events["item"]), dtype=torch.bool)
    late_P[own] = events["time"][own] >= at
    assert late_P.sum() >= 3
    events["item"][late_P] = 0
    given = [{"item": "i3", "time": at + 1}]
    changed.observe([Event(user=name, item="i5", time=at + 2)])
    asked = [name] * 4, ["i1", "i2", "i3", "i4"]
    wanted = predictor.score(*asked, context={"time": at}).tasks["watch"]
    found = changed.score(*asked, context={"time": at}, events=given).tasks["watch"]
    assert torch.equal(found, wanted)
    known = predictor.score(*asked, context={"time": LATER}).tasks["watch"]
    assert not torch.equal(changed.score(*asked, context={"time": LATER}).tasks["watch"], known)
    moment = predictor._past(predictor.resolve([name]), None, torch.tensor([at]).double())["moment"]
    assert moment.last < at and moment.about(torch.zeros(1).long()).popularity.isnan()


def test_without_a_time_nothing_of_it_is_read(timely: Path) -> None:
    predictor = Predictor.load(timely)
    moment = predictor._past(predictor.resolve(["u1"]), None, None)["moment"]
    model = predictor.artifact.model
    assert model.encoders is not None and model.encoders.moment is not None
    assert model.encoders.moment.values(moment.about(torch.zeros(1).long())).isnan().all()


def test_without_a_time_items_are_as_of_the_end_of_the_data(timely: Path) -> None:
    predictor = Predictor.load(timely)
    known, item = predictor.artifact.past, torch.arange(3)
    assert known is not None
    found = predictor._past(predictor.resolve(["u1"] * 3), None, None)["moment"].about(item)
    late = known.at(item, (known.end + 1).expand(3))
    assert torch.equal(found.age, late[0]) and torch.equal(found.popularity, late[1])


def test_a_model_folder_knows_items_up_to_the_end_of_validation(timely: Path, timed: Path) -> None:
    known, schema = Predictor.load(timely).artifact.past, Schema.load(timed)
    before, whole = (read_log(timed, schema, SPLITS[:count]).time_P.max() for count in (2, 3))
    assert known is not None and float(known.end) == float(before) < float(whole)


def test_an_observed_event_changes_gap_and_count(timely: Path) -> None:
    predictor = Predictor.load(timely)
    resolved = predictor.resolve(["new", "u1"])
    at = torch.tensor([LATER, LATER]).double()
    before = predictor._past(resolved, None, at)["moment"]
    event = {"item": "i3", "time": LATER - 60}
    predictor.observe([Event(user=one, **event) for one in ("new", "u1")])
    after = predictor._past(resolved, None, at)["moment"]
    assert before is not None and after is not None
    assert before.last[0].isnan() and before.events.tolist() == [0, 8]
    assert after.last.tolist() == [LATER - 60] * 2
    assert after.events.tolist() == [1, 8]  # at most model.sequence_length


def test_files_commands_and_evaluations_read_the_time(
    timely: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from recsys_moe.cli.recommend import recommend
    from recsys_moe.inference.files.predict import predict_file

    predictor, pairs = Predictor.load(timely), tmp_path / "pairs.csv"
    pairs.write_text(f"user,item,time\nu1,i1,{LATER}\nu1,i1,\nu2,i3,{LATER}\n")
    predict_file(predictor, pairs, tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open() as stream:
        found = [float(one["watch"]) for one in csv.DictReader(stream)]
    times = [{"time": LATER}, {}, {"time": str(LATER)}]
    wanted = predictor.score(["u1", "u1", "u2"], ["i1", "i1", "i3"], context=times)
    assert found == pytest.approx(wanted.tasks["watch"].tolist(), rel=1e-4)
    recommend(timely, user="u1", time=str(LATER), as_json=True)
    items = json.loads(capsys.readouterr().out)["items"]
    [ranked] = predictor.recommend(["u1"], context={"time": LATER})
    assert [one["item"] for one in items] == [one.item for one in ranked]
    for past in (Past(), Past(lists="successive"), Past(history="frozen")):
        assert 0 < evaluate_ranking(timely, "test", past=past)["ndcg"] <= 1


def test_a_wrong_time_is_refused_with_its_row(timely: Path, run: Path) -> None:
    predictor = Predictor.load(timely)
    with pytest.raises(DataError, match="time must be .* of the years 1970 to 9999, got -5"):
        predictor.recommend(["u1"], context={"time": -5})
    for no_time in ("now", "\ud800", 10**400, True, float("inf")):
        with pytest.raises(DataError, match="time must be seconds since 1970"):
            predictor.recommend(["u1"], context={"time": no_time})
    with pytest.raises(DataError, match="unknown context feature 'tme'; the model reads time"):
        predictor.recommend(["u1"], context={"tme": LATER})
    with pytest.raises(DataError, match="time must be seconds since 1970 .*got 'noon'"):
        predictor.score(["u1"], ["i1"], context={"time": "noon"})
    with pytest.raises(DataError, match="does not read time; .* model.time_features"):
        Predictor.load(run).score(["u1"], ["i1"], context={"time": LATER})


TIMES = [LATER, 1000 * LATER, f"{LATER}000", "2023-11-14T22:38:20", "2023-11-14 23:38:20+01:00"]
"""The same second, as `prepare` reads it."""


@pytest.mark.parametrize(
    "time", [*TIMES, np.datetime64(LATER, "s"), datetime.fromtimestamp(LATER, timezone.utc)]
)
def test_requests_take_the_times_that_prepare_takes(time: Any, timely: Path) -> None:
    predictor = Predictor.load(timely)
    wanted, found = (
        predictor.score(["u1"] * 2, ["i1", "i2"], context={"time": one}).tasks["watch"]
        for one in (LATER, time)
    )
    assert torch.equal(found, wanted)


def test_the_commands_take_them_too_and_refuse_two_units(
    timely: Path, tmp_path: Path, command: Command
) -> None:
    files = ("--input", tmp_path / "pairs.csv", "--output", tmp_path / "scores.csv", "--overwrite")
    scores, lists = [], []
    for time in TIMES:
        (tmp_path / "pairs.csv").write_text(f"user,item,time\nu1,i1,{time}\nu2,i3,\n")
        assert command("predict", timely, *files).exit_code == 0
        with (tmp_path / "scores.csv").open() as stream:
            scores.append([one["watch"] for one in csv.DictReader(stream)])
        lists.append(command("recommend", timely, "--user", "u1", "--time", time, "--json").out)
    assert all(one == scores[0] for one in scores) and len({*lists}) == 1
    (tmp_path / "pairs.csv").write_text(f"user,item,time\nu1,i1,{LATER}\nu2,i3,{LATER}000\n")
    said = "column 'time' must be in one unit, but by magnitude it is in s and ms; convert it"
    assert said in command.fails(3, "predict", timely, *files)
    (tmp_path / "pairs.csv").write_text(f"user,item,time\nu1,i1,{LATER}\nu2,i3,noon\n")
    assert "row 2: time must be seconds" in command.fails(3, "predict", timely, *files)
    for wrong in ("noon", "", "-5"):
        told = command.fails(2, "recommend", timely, "--user", "u1", f"--time={wrong}")
        assert told.startswith("error: --time must be seconds since 1970 (UTC) or an ISO date")


def test_two_times_of_one_request_are_refused(timely: Path, command: Command) -> None:
    both = ("--time", LATER, "--context", "time=5")
    assert command.fails(2, "recommend", timely, "--user", "u1", *both) == (
        f"error: the time must be given once, got --time {LATER} and --context time=5; omit one"
    )


def test_unknown_names_and_data_without_order_are_refused(featured: Path) -> None:
    with pytest.raises(ConfigError, match="must be of hour, .*got 'our'; did you mean 'hour'"):
        config(time_features="our,gap")
    said = "time_features must be none or all alone, or names, got all,hour; set .*=all, or omit"
    with pytest.raises(ConfigError, match=said):
        config(time_features="all,hour")
    wanted = parse_config({"model": {"time_features": "hour"}})
    with pytest.raises(ConfigError, match="time_features need prepared data with times in order"):
        RecDataModule(featured, wanted).open()


def test_a_share_of_training_rows_loses_its_time(timed: Path) -> None:
    data = {"context_dropout": 0.5, "id_dropout": 0.0}
    module = RecDataModule(timed, parse_config({"model": {"time_features": "all"}, "data": data}))
    moments = [batch.moment for batch in module.train_batches(0)]
    lost = torch.cat([one.time.isnan() for one in moments if one is not None]).double().mean()
    assert 0.4 < float(lost) < 0.6
    assert all(one is not None and one.age[one.time.isnan()].isnan().all() for one in moments)


def test_means_and_deviations_are_those_of_the_training_rows(timed: Path) -> None:
    wanted = parse_config({"model": {**TINY_MODEL, "time_features": "all"}})
    module, data = RecModule(wanted), RecDataModule(timed, wanted)
    module.set_up(data)
    moment = in_memory(data, "train").moment()
    assert moment is not None
    count_N = moment.events.log1p()
    reader = module.model.encoders.moment  # type: ignore[union-attr]
    assert reader.names == ["hour", "weekday", "gap", "events"]
    assert float(reader.mean_C[3]) == pytest.approx(float(count_N.mean()), rel=1e-5)
    assert float(reader.std_C[3]) == pytest.approx(float(count_N.std(correction=0)), rel=1e-4)


@pytest.mark.slow
def test_a_resumed_run_is_the_same_to_the_byte(timed: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    wanted = config()
    fit(wanted, timed, whole)
    one = wanted.model_copy(update={"trainer": wanted.trainer.model_copy(update={"max_epochs": 1})})
    fit(one, timed, parts)
    fit(wanted, timed, parts, resume="auto")
    weights = [(run / "model" / "weights.safetensors").read_bytes() for run in (whole, parts)]
    assert weights[0] == weights[1]


def test_rows_on_disk_know_their_time(timed: Path) -> None:
    """`prepared` again, in row groups of their own where the memory is small."""
    wanted = parse_config({"model": {"time_features": "all"}})
    small = parse_config({"model": {"time_features": "all"}, "data": {"shuffle_buffer": 100}})
    whole = in_memory(RecDataModule(timed, wanted), "train").moment()
    rows = RecDataModule(timed, small).rows("train")
    parts = [one for chunk in rows.chunks() if (one := chunk.moment()) is not None]
    assert whole is not None
    age_N = torch.cat([one.age for one in parts])
    assert torch.equal(age_N.nan_to_num(-1), whole.age.nan_to_num(-1))


def test_a_warm_start_keeps_what_reads_events_and_time(timely: Path, timed: Path) -> None:
    module, data = RecModule(config()), RecDataModule(timed, config())
    module.set_up(data, open_start(timely, config(), data.schema, timed))
    old, new = Predictor.load(timely).artifact.model.state_dict(), module.model.state_dict()
    kept = ("encoders.sequence.", "encoders.moment.", "trend.")
    names = [name for name in old if name.startswith(kept)]
    assert {name.split(".")[1] for name in names} > {"sequence", "moment", "piece_PT", "mean_F"}
    assert all(torch.equal(old[name], new[name]) for name in names)


def test_leave_last_reads_the_time(tmp_path: Path) -> None:
    data = prepared(tmp_path / "data", "leave-last")
    moment = in_memory(RecDataModule(data, config()), "test").moment()
    assert moment is not None
    assert not moment.time.isnan().any()
