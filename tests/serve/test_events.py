"""Events over HTTP: stored and inline ones give the lists of Python, and survive a kill."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.errors import ConfigError, RunError
from recsys_moe.inference.events.store import EventStore
from recsys_moe.inference.predictor import Predictor
from recsys_moe.serve.limits import Limits
from recsys_moe.serve.server import Settings, serve
from tests.conftest import Command
from tests.serve.conftest import Caller, retrained
from tests.serve.test_cold_start import answer
from tests.serve.test_server import running

LATER = 1_100_000_000.0
OWN: dict[str, Any] = {"item": "i1", "time": LATER, "value": 5}
EVENT = {"user": "u0", **OWN}
PAIRS = {"users": ["u0", "u0"], "items": ["i2", "i3"]}


@pytest.fixture
def caller(sequence_run: Path) -> Caller:
    return Caller(sequence_run)


@pytest.fixture
def predictor(sequence_run: Path) -> Predictor:
    return Predictor.load(sequence_run)


def watch(caller: Caller, body: Any = PAIRS) -> list[float]:
    found: list[float] = answer(caller, "/predict", body)["scores"]["watch"]
    return found


def test_a_stored_event_changes_scores_and_lists_as_in_python(
    caller: Caller, predictor: Predictor
) -> None:
    before = watch(caller)
    reply = answer(caller, "/events", {"events": [EVENT]})
    assert {**reply, "model": ""} == {"model": "", "stored": 1, "duplicates": 0, "rejected": []}
    predictor.observe([EVENT])
    expected = predictor.score(PAIRS["users"], PAIRS["items"]).tasks["watch"].tolist()
    assert watch(caller) == pytest.approx(expected, abs=1e-6)
    assert max(abs(a - b) for a, b in zip(before, expected, strict=True)) > 1e-4
    [ranking] = answer(caller, "/recommend", {"users": ["u0"], "k": 5})["rankings"]
    [entries] = predictor.recommend(["u0"], 5)
    assert [one["item"] for one in ranking["items"]] == [one.item for one in entries]


def test_events_of_a_request_are_not_stored_and_equal_stored_ones(caller: Caller) -> None:
    before = watch(caller)
    inline = watch(caller, {**PAIRS, "events": [OWN]})
    each = watch(caller, {**PAIRS, "events": [[OWN], []]})
    assert watch(caller) == before
    answer(caller, "/events", {"events": [EVENT]})
    assert inline == pytest.approx(watch(caller), abs=1e-6)
    assert each == pytest.approx([inline[0], before[1]], abs=1e-6)


def test_null_is_a_row_without_events_as_none_is_in_python(
    caller: Caller, predictor: Predictor
) -> None:
    for events in ([[OWN], None], [None, [OWN]], [None, None]):
        expected = predictor.score(*PAIRS.values(), events=events).tasks["watch"].tolist()
        assert watch(caller, {**PAIRS, "events": events}) == pytest.approx(expected, abs=1e-6)
    users = {"users": ["u0", "u1"], "k": 3}
    empty = answer(caller, "/recommend", {**users, "events": [[OWN], []]})
    assert answer(caller, "/recommend", {**users, "events": [[OWN], None]}) == empty


def test_the_list_of_a_known_user_follows_the_events_of_the_request(caller: Caller) -> None:
    body = {"users": ["u0"], "k": 5}
    [inline] = answer(caller, "/recommend", {**body, "events": [OWN]})["rankings"]
    answer(caller, "/events", {"events": [EVENT]})
    [stored] = answer(caller, "/recommend", body)["rankings"]
    for one, other in zip(inline["items"], stored["items"], strict=True):
        assert one["item"] == other["item"]
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-6)


def test_requests_that_run_together_keep_their_events(caller: Caller) -> None:
    events: list[Any] = [[OWN], [], [[OWN], []], [{"item": "i9", "time": LATER}]]
    bodies = [{**PAIRS, "events": one} for one in events]

    async def all_at_once(client: Any) -> Any:
        return await asyncio.gather(*(client.post("/predict", json=body) for body in bodies))

    found = [one.json()["scores"]["watch"] for one in caller.together(all_at_once)]
    for body, scores in zip(bodies, found, strict=True):
        assert scores == pytest.approx(watch(caller, body), abs=1e-6)


def test_explanations_take_the_events_of_a_request(caller: Caller) -> None:
    body = {**PAIRS, "events": [[OWN], []]}
    before, found = (answer(caller, "/explain", one)["pairs"] for one in (PAIRS, body))
    scores = [one["tasks"]["watch"]["score"] for one in found]
    assert scores == pytest.approx(watch(caller, body), abs=1e-6)
    assert found[0] != before[0]
    answer(caller, "/events", {"events": [EVENT]})
    [stored, _] = answer(caller, "/explain", PAIRS)["pairs"]
    assert scores[0] == pytest.approx(stored["tasks"]["watch"]["score"], abs=1e-6)


def test_a_new_user_needs_events_alone(caller: Caller, predictor: Predictor) -> None:
    [alone] = answer(caller, "/recommend", {"events": [OWN], "k": 4})["rankings"]
    assert (alone["user"], alone["unseen_user"]) == (None, True)
    users = ["?", {"events": [OWN]}]
    some = answer(caller, "/recommend", {"users": users, "k": 4, "events": [[OWN], []]})
    answer(caller, "/events", {"events": [{**OWN, "user": "new"}]})
    [stored] = answer(caller, "/recommend", {"users": ["new"], "k": 4})["rankings"]
    expected = [one.item for one in predictor.recommend(events=[OWN], k=4)[0]]
    for ranking in [alone, *some["rankings"], stored]:
        assert [one["item"] for one in ranking["items"]] == expected


def test_a_second_delivery_and_a_late_event_are_told_apart(caller: Caller) -> None:
    late = {**EVENT, "time": 5}
    events = [EVENT, late, EVENT, {**EVENT, "time": LATER + 1, "id": 7}]
    reply = answer(caller, "/events", {"events": events})
    assert (reply["stored"], reply["duplicates"]) == (2, 1)
    [rejected] = reply["rejected"]
    assert rejected["row"] == 1 and "before the user's last event" in rejected["reason"]
    text = caller("GET", "/metrics").text
    for result, count in (("stored", 2), ("duplicate", 1), ("rejected", 1)):
        assert f'recsys_moe_events_total{{result="{result}"}} {count}.0' in text


def test_lists_that_arrive_together_are_written_by_few_fsyncs_and_answered_each(
    caller: Caller,
) -> None:
    writes: list[int] = []

    class Sink:
        def append(self, events: Any) -> None:
            writes.append(len(events))

    store = caller.models.current.predictor.store
    assert store is not None
    store.sink = Sink()
    lists = [[{**EVENT, "time": LATER + n, "user": f"u{n}"}] * (1 + n % 2) for n in range(40)]

    async def all_at_once(client: Any) -> Any:
        return await asyncio.gather(
            *(client.post("/events", json={"events": one}) for one in lists)
        )

    replies = [one.json() for one in caller.together(all_at_once)]
    assert [(one["stored"], one["duplicates"]) for one in replies] == [(1, 0), (1, 1)] * 20
    assert sum(writes) == 40 and len(writes) < 10


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/events", {"events": []}, "events: must not be empty, got []; add an entry"),
        ("/events", {"events": [OWN]}, "events[0].user: field 'user' must be given, got {"),
        (
            "/events",
            {"events": [EVENT, {"user": 1, "time": 9}]},
            "events[1].item: field 'item'",
        ),
        ("/events", {"events": [{**EVENT, "time": "1"}]}, "events[0].time: must be seconds since"),
        ("/events", {"events": [{**EVENT, "time": "1"}]}, 'a finite number, got "1"'),
        ("/predict", {**PAIRS, "users": ["u0", {"events": [OWN, {}]}]}, "users[1].events[1].item:"),
        ("/events", {"events": [{**EVENT, "time": 1.7e12}]}, "divide milliseconds by 1000"),
        ("/events", {"events": [{**EVENT, "time": -1}]}, "events[0]: time must be seconds"),
        ("/predict", {**PAIRS, "events": [OWN, {**OWN, "time": -1}]}, "events[1]: time must be"),
        ("/predict", {**PAIRS, "events": [[], [{**OWN, "time": -1}]]}, "events[1][0]: time must"),
        ("/events", {"events": [EVENT, {**EVENT, "item": " "}]}, "events[1].item: must be an id"),
        ("/events", {"events": [{**EVENT, "rating": 3}]}, "'rating', got 3; known: id, item, time"),
        (
            "/events",
            {"events": [{**EVENT, "tme": 3}]},
            "events[0].tme: there is no field 'tme'",
        ),
        ("/events", {"events": [{**EVENT, "tme": 3}]}, "got 3; did you mean 'time'?"),
        ("/events", {"events": [EVENT] * 4}, "at most 3 items"),
        ("/predict", {**PAIRS, "events": [EVENT]}, "no field 'user', got \"u0\"; known: id,"),
        (
            "/predict",
            {**PAIRS, "itms": [1]},
            "itms: there is no field 'itms', got [1]; did",
        ),
        ("/predict", {**PAIRS, "events": [[OWN]]}, "a list per row (2), got 1"),
        ("/predict", {**PAIRS, "events": OWN}, "must be a list of events"),
        (
            "/predict",
            {**PAIRS, "events": [OWN, ["x"]]},
            'events[1]: Input should be an object, got ["x"]',
        ),
        ("/recommend", {"users": [1], "k": "5"}, 'k: Input should be a valid integer, got "5"'),
        ("/recommend", {"users": [1], "k": 0}, "greater than or equal to 1, got 0"),
        ("/recommend", {"users": [], "events": []}, "features, history or events of a new user"),
    ],
)
def test_refusals_name_the_rule(path: str, body: Any, words: str, sequence_run: Path) -> None:
    response = Caller(sequence_run, Limits(max_rows=3)).post(path, body)
    assert response.status_code == 422 and words in response.json()["error"], response.text


def test_a_model_without_events_refuses_them_and_says_so(run: Path) -> None:
    caller = Caller(run)
    pairs = {"users": [1], "items": [2]}
    event = {"item": 1, "time": LATER}
    bodies: list[tuple[str, Any]] = [
        ("/events", {"events": [{**event, "user": 1}]}),
        ("/predict", {**pairs, "events": [event]}),
        ("/recommend", {"users": [1], "events": [event]}),
        ("/recommend", {"events": [event]}),
        ("/predict", {**pairs, "users": [{"events": [event]}]}),
    ]
    for path, body in bodies:
        response = caller.post(path, body)
        assert response.status_code == 422, response.text
        assert "model.sequence=none); omit the events, or train with" in response.json()["error"]
    assert caller("GET", "/model").json()["knows_events"] is False


def test_a_disk_that_fails_is_503_without_its_path_and_nothing_is_stored(caller: Caller) -> None:
    class Full:
        def append(self, events: Any) -> None:
            raise RunError("events cannot be written to /secret/file: disk full; make room")

    store = caller.models.current.predictor.store
    assert store is not None
    store.sink = Full()
    response = caller.post("/events", {"events": [EVENT]})
    assert response.status_code == 503
    assert response.json()["error"] == "events cannot be stored now; send them again later"
    store.sink = None
    assert answer(caller, "/events", {"events": [EVENT]})["stored"] == 1


def test_events_outlive_a_new_model(sequence_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sequence_run / "model", tmp_path / "model"))
    caller = Caller(folder)
    assert caller("GET", "/model").json()["knows_events"] is True
    answer(caller, "/events", {"events": [EVENT]})
    retrained(folder)
    assert caller.together(lambda client: caller.models.reload())
    predictor = Predictor.load(folder)
    without = predictor.score(PAIRS["users"], PAIRS["items"]).tasks["watch"].tolist()
    predictor.observe([EVENT])
    expected = predictor.score(PAIRS["users"], PAIRS["items"]).tasks["watch"].tolist()
    assert watch(caller) == pytest.approx(expected, abs=1e-6) != pytest.approx(without, abs=1e-6)


@pytest.mark.slow
def test_acknowledged_events_survive_a_kill(sequence_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    options = (sequence_run, "--events", file)
    body = {"users": ["u0"], "k": 5}
    with running(*options) as server:  # which ends by a kill
        reply = server.client.post("/events", json={"events": [EVENT]})
        assert reply.json()["stored"] == 1
        lists = server.client.post("/recommend", json=body).json()
    with file.open("ab") as stream:
        stream.write(b'{"user": "u0", "item"')  # what a kill in a write leaves
    with running(*options) as server:
        assert server.client.post("/recommend", json=body).json() == lists
        again = server.client.post("/events", json={"events": [EVENT]})
        assert again.json()["duplicates"] == 1
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"item": "i1", "time": LATER, "value": 5.0, "user": "u0"}
    ]


def test_the_file_of_events_needs_a_model_that_reads_them(
    run: Path, tmp_path: Path, command: Command
) -> None:
    file = tmp_path / "events.jsonl"
    message = command.fails(2, "serve", run, "--port", 0, "--events", file)
    assert "--events needs a model that reads events" in message and not file.exists()


def test_a_file_with_a_line_that_is_no_event_stops_the_start(
    sequence_run: Path, tmp_path: Path, command: Command
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(json.dumps(EVENT) + "\n{}\n" + json.dumps(EVENT) + "\n")
    message = command.fails(3, "serve", sequence_run, "--port", 0, "--events", file)
    assert "line 2: user must be text" in message and "correct or remove the line" in message
    file.write_text(json.dumps({**EVENT, "time": 4e9}) + "\n")  # until 2096
    message = command.fails(3, "serve", sequence_run, "--port", 0, "--events", file)
    assert "line 1: time must be at most 3600 s after the present, got 4000000000" in message


def test_options_of_events_are_checked(run: Path, command: Command) -> None:
    tolerance = command.fails(2, "serve", run, "--event-tolerance", -1)
    assert "--event-tolerance must be at least 0 seconds, got -1" in tolerance
    users = command.fails(2, "serve", run, "--max-event-users", 0)
    assert "--max-event-users must be at least 1, got 0" in users


def test_settings_refuse_a_folder_as_the_file(sequence_run: Path, tmp_path: Path) -> None:
    settings = Settings(port=0, events=tmp_path, store=EventStore(1))
    with pytest.raises(ConfigError, match=r"--events .* must be a file"):
        serve(sequence_run, settings)
