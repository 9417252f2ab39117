"""Events in a file: what was acknowledged comes back; a torn end does not stop a start."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recsys_moe.errors import ConfigError, DataError, RunError
from recsys_moe.inference.events.journal import LONGEST_LINE, Journal
from recsys_moe.inference.events.observed import Event
from recsys_moe.inference.events.store import EventStore

EVENTS = [
    Event("50", 1.5, 4.0, user="1", id="a"),
    Event("\u00e9", 2.0, user="2"),
    Event("7", 3.0, user="1"),
]
LINE = b'{"item": "9", "time": 4.0, "user": "1"}'


def read(path: Path) -> list[Event]:
    journal = Journal(path)
    try:
        return [*journal.replay()]
    finally:
        journal.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """With EVENTS."""
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    journal.append(EVENTS[:2])
    journal.append(EVENTS[2:])
    journal.close()
    return path


def test_events_come_back_as_they_were_one_json_object_a_line(file: Path) -> None:
    assert read(file) == EVENTS
    first = json.loads(file.read_text().splitlines()[0])
    assert first == {"user": "1", "item": "50", "time": 1.5, "value": 4.0, "id": "a"}


def test_a_file_cut_anywhere_loses_only_the_line_it_cuts(file: Path) -> None:
    whole = file.read_bytes()
    ends = [place + 1 for place, one in enumerate(whole) if one == 10]
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        lines = sum(end - 1 <= size for end in ends)  # the end of a line may be missing
        assert read(file) == EVENTS[:lines]
        journal = Journal(file)  # and it goes on
        list(journal.replay())
        journal.append(EVENTS[:1])
        journal.close()
        assert read(file) == [*EVENTS[:lines], EVENTS[0]]


@pytest.mark.parametrize("tail", [b"\0" * 50_000, b'{"item": ' + b'"' * 40_000, b"\xff\xfe"])
def test_a_torn_end_may_be_of_any_bytes_and_long(file: Path, tail: bytes) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole + tail)
    assert read(file) == EVENTS
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "must hold one JSON object"),
        (b"", "must hold one JSON object"),
        (b"[]", "must be an object"),
        (b'{"user": 1, "item": 2}', "time must be seconds since 1970"),
        (b'{"user": 1, "item": 2, "time": 1, "x": 1}', "has no 'x'"),
        (b"[" * 10_000, "must hold one JSON object"),
        (b" " * LONGEST_LINE, "must be shorter than"),
        (LINE.ljust(LONGEST_LINE), "must be shorter than"),
    ],
)
def test_any_other_line_that_is_no_event_is_refused_with_its_number(
    file: Path, line: bytes, words: str
) -> None:
    for after in (b"", LINE, LINE + b"\n"):
        content = file.read_bytes() + line + b"\n" + after
        broken = file.with_name("broken.jsonl")
        broken.write_bytes(content)
        with pytest.raises(DataError, match=r"line 4: .*; correct or remove the line") as error:
            read(broken)
        assert words in str(error.value)
        assert broken.read_bytes() == content


def test_an_event_of_the_future_under_a_lower_tolerance_is_refused_with_its_remedies(
    file: Path,
) -> None:
    journal = Journal(file)
    list(journal.replay())
    lenient = EventStore(5, tolerance=3600.0, clock=lambda: 1000.0)
    lenient.sink = journal
    assert lenient.append([Event("1", 3000.0, user="1")]).stored == 1
    journal.close()
    strict, journal = EventStore(5, tolerance=60.0, clock=lambda: 1100.0), Journal(file)
    said = r"line 4: time must be at most 60 s after the present, got 3000; correct or remove the "
    with pytest.raises(DataError, match=f"{said}line, or raise --event-tolerance$"):
        strict.replay(journal.replay(strict.check))
    journal.close()
    lenient.replay(read(file))  # with the tolerance of before it starts again


def test_a_store_replays_what_it_held_whatever_the_tolerance_is_now(file: Path) -> None:
    late = [Event("1", 1000.0, user="1"), Event("2", 10.0, user="1")]
    journal = Journal(file)
    list(journal.replay())
    one = EventStore(5, clock=lambda: 1e4)
    one.sink = journal
    assert one.append(late).stored == 2
    assert one.append(late).duplicates == 2  # and are not written again
    journal.close()
    other = EventStore(5, tolerance=0.0, clock=lambda: 0.0)
    other.replay(read(file))
    assert [*other.of("1").item] == ["50", "7", "2", "1"]
    other.replay(read(file))
    assert [*other.of("1").item] == ["50", "7", "2", "1"]
    assert len(read(file)) == 5


def test_a_write_that_fails_half_way_leaves_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()
    journal, write, calls = Journal(file), os.write, []
    list(journal.replay())

    def full(number: int, content: bytes) -> int:
        calls.append(number)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(number, content[:10])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RunError, match="No space left on device; make room"):
            journal.append(EVENTS)
    assert file.read_bytes() == before
    journal.append(EVENTS[:1])
    journal.close()
    assert read(file) == [*EVENTS, EVENTS[0]]


def test_a_list_is_one_fsync_and_on_the_disk_when_append_returns(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, synced = Journal(file), []
    list(journal.replay())
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(file.stat().st_size))
    journal.append(EVENTS)
    journal.close()
    assert synced == [file.stat().st_size]


def test_a_second_process_is_refused(file: Path) -> None:
    journal = Journal(file)
    code = "import sys; from pathlib import Path; from recsys_moe.inference.events.journal import *"
    code += "; Journal(Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True)
    journal.close()
    assert "is in use by another process; choose another file" in done.stderr


def test_a_path_that_cannot_be_a_file_is_a_usage_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "events.jsonl"):
        with pytest.raises(ConfigError, match=r"--events .*; "):
            Journal(path)
