"""Jobs run to their end: in parallel but not too many, again when lost, stopped when asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from recsys_moe.lab.jobs.executor import Job, LocalExecutor, Outcome
from tests.lab.jobs.commands import TELL, ends, ends_soon, job, wait_for

ROOT = Path(__file__).parents[3]
ASKED_TO_END = ("sys.exit(130)", "sys.exit(143)")
"""How `fit` ends after SIGINT and SIGTERM."""


def run(executor: LocalExecutor, *jobs: Job) -> dict[str, Outcome]:
    return {outcome.job.name: outcome for outcome in executor.run(jobs)}


def test_steps_run_in_order_with_their_output_in_the_log(tmp_path: Path) -> None:
    found = run(LocalExecutor(1, 1), job(tmp_path, "a", "print('one')", "print('two')"))
    assert ends(found["a"]) == (0, 2)
    lines = (tmp_path / "logs" / "a.log").read_text().splitlines()
    assert lines.index("one") < lines.index("two")
    assert lines[0].startswith("$ ") and sys.executable in lines[0]


def test_what_is_done_is_not_started_again(tmp_path: Path) -> None:
    jobs = [job(tmp_path, name, "pass") for name in "abc"]
    assert [o.started for o in run(LocalExecutor(2, 1), *jobs).values()] == [1, 1, 1]
    assert [o.started for o in run(LocalExecutor(2, 1), *jobs).values()] == [0, 0, 0]


def test_no_more_than_the_workers_run_at_a_time(tmp_path: Path) -> None:
    """The first two wait for each other; whichever counts first then sees both."""
    code = f"p = pathlib.Path({str(tmp_path)!r}); me = p / f'{{os.getpid()}}.now'; me.touch()\n"
    code += "pathlib.Path(p / f'{os.getpid()}.ever').touch(); late = time.monotonic() + 60\n"
    code += "while len(list(p.glob('*.ever'))) < 2 and time.monotonic() < late: time.sleep(.01)\n"
    code += "time.sleep(0.1); n = len(list(p.glob('*.now'))); me.unlink(); print('at once', n)"
    run(LocalExecutor(2, 1), *(job(tmp_path, name, code) for name in "abcd"))
    counts = [int((tmp_path / "logs" / f"{name}.log").read_text().split()[-1]) for name in "abcd"]
    assert max(counts) == 2


@pytest.mark.parametrize(
    ("set_", "expected"), [("", "3"), ("1", "1"), ("2", "2"), ("8", "3"), ("x", "3")]
)
def test_processes_have_their_share_of_threads(
    monkeypatch: pytest.MonkeyPatch, set_: str, expected: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", set_)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    environment = LocalExecutor(1, 3).environment()
    # Torch takes MKL's number where the two differ.
    assert (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]) == (expected, expected)


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(137)", *ASKED_TO_END]
)
def test_a_lost_worker_is_replaced(tmp_path: Path, end: str) -> None:
    first = tmp_path / "first"
    code = f"p = pathlib.Path({str(first)!r})\nif not p.exists():\n    p.touch()\n    {end}"
    found = run(LocalExecutor(1, 1), job(tmp_path, "a", "pass", code, "pass"))
    assert ends(found["a"]) == (0, 4)  # the second step twice


def test_a_worker_that_is_always_lost_is_given_up(tmp_path: Path) -> None:
    code = "os.kill(os.getpid(), signal.SIGKILL)"
    found = run(LocalExecutor(1, 1, retries=2), job(tmp_path, "a", code))
    assert ends(found["a"]) == (-signal.SIGKILL, 3)


def test_a_failure_is_not_repeated_and_the_others_go_on(tmp_path: Path) -> None:
    bad, good = job(tmp_path, "bad", "sys.exit(3)", "pass"), job(tmp_path, "good", "pass")
    found = run(LocalExecutor(1, 1), bad, good)
    assert ends(found["bad"]) == (3, 1)
    assert ends(found["good"]) == (0, 1)


def test_closing_the_generator_stops_what_runs(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    quick = job(
        tmp_path, "quick", f"\nwhile not os.path.exists({str(pid_file)!r}): time.sleep(.02)"
    )
    outcomes = LocalExecutor(2, 1).run([quick, job(tmp_path, "long", TELL.format(str(pid_file)))])
    assert next(outcomes).job is quick
    pid = int(wait_for(pid_file))
    outcomes.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at the parent's death")
def test_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import sys; from pathlib import Path\n"
        "from recsys_moe.lab.jobs.executor import Job, LocalExecutor\n"
        f"tell = 'import os, pathlib, time; ' + {TELL!r}.format(sys.argv[1])\n"
        "command = [sys.executable, '-c', tell]\n"
        "job = Job('a', (lambda: command,), Path(sys.argv[1] + '.log'))\n"
        "list(LocalExecutor(1, 1).run([job]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(pid_file)], cwd=ROOT) as parent:
        pid = int(wait_for(pid_file))
        parent.kill()
    assert ends_soon(pid)


def test_a_job_is_taken_when_a_worker_is_free_for_it(tmp_path: Path) -> None:
    ended: list[str] = []

    def jobs() -> Iterator[Job]:
        for name in "abc":
            assert len(ended) >= ord(name) - ord("b")  # all before the last one have been heard of
            yield job(tmp_path, name, "pass")

    for outcome in LocalExecutor(1, 1).run(jobs()):
        ended.append(outcome.job.name)
    assert ended == ["a", "b", "c"]


def test_a_job_that_ends_early_is_stopped_and_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "pathlib.Path('begun').touch(); time.sleep(60)"
    monkeypatch.chdir(tmp_path)
    looks = Path("begun").exists
    early = replace(job(tmp_path, "early", code, "print('next')"), ends_early=looks)
    (outcome,) = LocalExecutor(1, 1).run([early])
    assert ends(outcome) == (0, 1)
    assert "next" not in (tmp_path / "logs" / "early.log").read_text().split("\n", 1)[1]


def test_a_job_that_does_not_stop_when_it_ends_early_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys_moe.lab.jobs.executor.SECONDS_TO_STOP", 0.2)
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); pathlib.Path('deaf').touch();"
    monkeypatch.chdir(tmp_path)
    deaf = job(tmp_path, "deaf", code + "time.sleep(60)")
    (outcome,) = LocalExecutor(1, 1).run([replace(deaf, ends_early=Path("deaf").exists)])
    assert outcome.exit_code == 0 and not (tmp_path / "deaf-0").exists()
