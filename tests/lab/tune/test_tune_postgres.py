"""A study in a real PostgreSQL: one of its own where the system's packages have it, or that of
RECSYS_MOE_POSTGRES=postgresql+psycopg://USER@HOST/DATABASE.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.lab.tune.run import tune
from tests.lab.tune.tune_pretend import ASKED, Pretend, trials

pytestmark = pytest.mark.slow
URL = "RECSYS_MOE_POSTGRES"
FAST = "-c fsync=off -c shared_buffers=1MB -c listen_addresses='' -c unix_socket_directories=."


def programs() -> Path | None:
    """The folder of PostgreSQL's programs, the newest of several; Debian's is not on the path."""
    found = [Path(path).resolve() for path in (shutil.which("pg_ctl"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return found[-1].parent if found else None


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a database that nothing else uses and only a socket in a folder of ours leads to."""
    pytest.importorskip("psycopg", reason='needs psycopg: pip install "recsys-moe[postgres]"')
    folder = programs()
    if given := os.environ.get(URL):
        yield given
    elif folder is None:
        pytest.skip(f"no PostgreSQL; on Debian: apt-get install postgresql, or set {URL}")
    else:
        with tempfile.TemporaryDirectory(prefix="rm-pg-", dir="/tmp") as own:
            yield from served(folder, Path(own))


def served(programs: Path, own: Path) -> Iterator[str]:
    """PostgreSQL in `own`; it refuses to run as root, who lends it to nobody."""
    other: dict[str, Any] = {}
    if os.geteuid() == 0:
        shutil.chown(own, "nobody")
        other = {"user": "nobody", "extra_groups": []}

    def call(*words: str) -> None:
        subprocess.run(words, check=True, cwd=own, timeout=60, stdout=subprocess.DEVNULL, **other)

    data = str(own / "data")
    options = ("-U", "tester", "--auth=trust", "--no-sync", "-E", "UTF8")
    call(f"{programs}/initdb", "-D", data, *options)
    control = (f"{programs}/pg_ctl", "-D", data, "--silent")
    call(*control, "-l", str(own / "log"), "-o", FAST.replace("=.", f"={own}"), "-w", "start")
    try:
        yield f"postgresql+psycopg://tester@/postgres?host={own}"
    finally:
        call(*control, "-m", "immediate", "-w", "stop")


def test_studies_share_a_server_and_continue_there(
    url: str, prepared: Path, tmp_path: Path
) -> None:
    asked = replace(ASKED, storage=url, trials=2)
    for name in ("a", "b"):
        tune(asked, prepared, tmp_path / name, executor=Pretend())
        assert len(trials(tmp_path / name)) == 2
    again = Pretend()
    tune(replace(asked, trials=3), prepared, tmp_path / "a", executor=again)
    assert again.ran == ["fit 0002"]
    assert (len(trials(tmp_path / "a")), len(trials(tmp_path / "b"))) == (3, 2)
    assert not (tmp_path / "a" / "study.db").exists()
