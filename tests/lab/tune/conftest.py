"""Databases of tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """They need not outlive a power cut: SQLite does not wait for the disk."""

    def connected(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", connected)
    yield
    event.remove(Engine, "connect", connected)
