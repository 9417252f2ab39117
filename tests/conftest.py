"""What all tests share: fixed threads, small data, a run on them, the command in this process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from os import times as processor_times  # a test may exchange that of os
from pathlib import Path
from typing import Any, NamedTuple

# Before torch is imported, here or in a subprocess: as many threads on any machine. One of several
# pytest processes has a core of its own.
os.environ["OMP_NUM_THREADS"] = os.environ.get(
    "RECSYS_MOE_TEST_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"
)
os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
os.environ.setdefault("MPLBACKEND", "Agg")

# A shell's background jobs ignore Ctrl-C, and what they start inherits that: tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

from recsys_moe.interrupts import NUMBERS

settings.register_profile(
    "reproducible",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no fault of the test
)
settings.load_profile("reproducible")

VARIABLE = "RECSYS_MOE_DATA"
THREADS = int(os.environ["OMP_NUM_THREADS"])  # before a test of the command changes it


def tells(message: str, said: str) -> bool:
    """Whether one line of a message says this, where " ... " stands for any words between: a key
    and a value, not the sentence around them."""
    return re.search(".*".join(map(re.escape, said.split(" ... "))), message) is not None


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    exit_code: int
    out: str
    err: str


class Command:
    """The installed command in this process: in a new one, importing torch takes seconds.

    Its log does not reach `err`, since pytest has handlers of its own: see `caplog`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *args: object) -> Done:
        from recsys_moe.cli import main

        self.monkeypatch.setattr(sys, "argv", ["recsys-moe", *map(str, args)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return Done(end.value.code, *self.capsys.readouterr())

    def fails(self, exit_code: int, *args: object) -> str:
        """The one line on stderr of a command that must fail."""
        done = self(*args)
        lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
        assert (done.exit_code, done.out, len(lines)) == (exit_code, "", 1), done.err
        return lines[0]


@pytest.fixture(autouse=True)
def threads_stay() -> Iterator[None]:
    """A test that left torch another number of threads would change the sums of later ones."""
    yield
    if torch := sys.modules.get("torch"):
        left = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        assert left == THREADS, f"torch has {left} threads after it"


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    before = [(n, signal.getsignal(n)) for n in NUMBERS]  # the command takes both
    hook = sys.unraisablehook
    yield Command(monkeypatch, capsys)
    for number, handler in before:
        signal.signal(number, handler)
    sys.unraisablehook = hook


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the unpacked real data sets; a test that asks for it is marked `real`."""
    value = os.environ.get(VARIABLE)
    if not value:
        pytest.skip(
            f"{VARIABLE} is not set: download ml-1m.zip and ml-100k.zip from grouplens.org, "
            f"unpack both below one folder, and set {VARIABLE} to that folder"
        )
    folder = Path(value).expanduser().resolve()
    if not folder.is_dir():
        pytest.fail(f"{VARIABLE} must name a folder, got {value!r}")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--most-seconds", type=float, help="fail a test without the mark slow that takes longer"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    most = item.config.getoption("--most-seconds")
    timed = most and report.passed and call.when == "call" and not item.get_closest_marker("slow")
    if timed and (took := max(item.stash.get(USED, 0.0), call.duration / 3)) > most:
        report.outcome = "failed"
        report.longrepr = f"took {took:.1f} s: mark it slow, or make it faster"
    return report


USED = pytest.StashKey[float]()
"""Processor seconds of a test: they do not grow beside other work, as those of the clock do."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    begun = sum(processor_times()[:4])
    try:
        yield
    finally:
        item.stash[USED] = sum(processor_times()[:4]) - begun


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "real_data" in fixtures:
            item.add_marker(pytest.mark.real)
        if "two_processes" in fixtures:  # each imports torch and trains
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small prepared folder: 60 users, 40 items, about 2,000 rows."""
    from data_prep.synthetic import prepare

    folder = tmp_path_factory.mktemp("prepared") / "data"
    prepare(folder, users=60, items=40, interactions=1000)
    return folder


BROWSER = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium that reaches for nothing by itself."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is in [dev]")
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("no chromium and chromedriver; on Debian: apt-get install chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    profile = tmp_path_factory.mktemp("profile")
    for argument in (*BROWSER, f"--user-data-dir={profile}", "--window-size=1000,1200"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield opened
    opened.quit()


TINY_MODEL = {"embedding_dim": 8, "num_experts": 4, "expert_dim": 16, "tower_dims": [8]}


@pytest.fixture(scope="session")
def run(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs on `prepared`. Read only."""
    from recsys_moe.config.settings import parse_config
    from recsys_moe.train.fit import fit

    out = tmp_path_factory.mktemp("runs") / "run"
    trainer = {"max_epochs": 2, "batch_size": 64}
    fit(parse_config({"model": TINY_MODEL, "trainer": trainer}), prepared, out)
    return out


@pytest.fixture(scope="session")
def bilinear_run(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a bilinear term and biases. Read only."""
    from recsys_moe.config.settings import parse_config
    from recsys_moe.train.fit import fit

    out = tmp_path_factory.mktemp("runs") / "bilinear"
    model = {**TINY_MODEL, "bilinear_rank": 8, "bilinear_diagonal": True, "biases": True}
    trainer = {"max_epochs": 2, "batch_size": 64}
    fit(parse_config({"model": model, "trainer": trainer}), prepared, out)
    return out


@pytest.fixture(scope="session")
def featured(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`prepared` with the features of tests/features.py. Read only."""
    from tests.features import with_features

    return with_features(prepared, tmp_path_factory.mktemp("featured") / "data")


@pytest.fixture(scope="session")
def featured_run(featured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with all features and with ratings in the histories of users and of items.
    Read only."""
    from recsys_moe.config.settings import parse_config
    from recsys_moe.train.fit import fit

    out = tmp_path_factory.mktemp("runs") / "featured"
    histories = {"item_bag": "ratings", "user_bag": "ratings", "bag_dim": 4}
    model = {**TINY_MODEL, "features": "all", **histories}
    trainer = {"max_epochs": 2, "batch_size": 64}
    fit(parse_config({"model": model, "trainer": trainer}), featured, out)
    return out


@pytest.fixture(scope="session")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the protocol `time` of the log of tests/timed.py. Read only."""
    from tests.timed import prepared

    return prepared(tmp_path_factory.mktemp("timed") / "data")


SEQUENCE_MODEL = {
    **{"sequence": "decay", "sequence_length": 8, "next_item_weight": 1.0},
    **{"bilinear_rank": 8, "bilinear_diagonal": True},
}


@pytest.fixture(scope="session")
def timed_run(timed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that reads the events before a row. Read only."""
    from recsys_moe.config.settings import parse_config
    from recsys_moe.train.fit import fit

    out = tmp_path_factory.mktemp("runs") / "timed"
    config = {
        "model": {**TINY_MODEL, **SEQUENCE_MODEL},
        "data": {"tie_rule": "log"},
        "optim": {"lr": 0.01},
        "trainer": {"max_epochs": 2, "batch_size": 128, "logger": "csv"},
    }
    fit(parse_config(config), timed, out)
    return out


@pytest.fixture(scope="session")
def contextual(featured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`featured` with the context of tests/context.py. Read only."""
    from tests.context import with_context

    return with_context(featured, tmp_path_factory.mktemp("contextual") / "data")


@pytest.fixture(scope="session")
def context_run(contextual: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with features, item bags and context. Read only."""
    from recsys_moe.config.settings import parse_config
    from recsys_moe.train.fit import fit

    out = tmp_path_factory.mktemp("runs") / "context"
    parts = {"features": "all", "item_bag": "ratings", "bag_dim": 4, "context": "all"}
    trainer = {"max_epochs": 2, "batch_size": 64}
    model = {**TINY_MODEL, **parts}
    config = {"model": model, "trainer": trainer, "optim": {"lr": 0.01}}
    fit(parse_config(config), contextual, out)
    return out


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of tests/live.py, split by time: users go on, and others are new. Read only."""
    from tests.live import live_data

    return live_data(tmp_path_factory.mktemp("live"))


@pytest.fixture(scope="session")
def sequence_run(live: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on `live` that reads the last 8 events of users. Read only."""
    from recsys_moe.config.settings import parse_config
    from recsys_moe.train.fit import fit

    out = tmp_path_factory.mktemp("runs") / "sequence"
    model = {**TINY_MODEL, **SEQUENCE_MODEL}
    trainer = {"max_epochs": 2, "batch_size": 64}
    config = {"model": model, "trainer": trainer, "optim": {"lr": 0.01}}
    fit(parse_config(config), live, out)
    return out
