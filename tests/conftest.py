"""What all tests share: fixed threads, reproducible examples, and the folder of real data."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch is imported, here or in a subprocess: the same sums in the same order on any machine.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("MKL_NUM_THREADS", "2")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
from hypothesis import settings

settings.register_profile("reproducible", derandomize=True, deadline=None, database=None)
settings.load_profile("reproducible")

VARIABLE = "RECSYS_MOE_DATA"


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real)
