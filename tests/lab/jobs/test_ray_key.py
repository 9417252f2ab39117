"""What Ray is told before it is imported; it needs not be there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from recsys_moe.lab.jobs import ray_cluster


def test_a_private_ray_listens_on_loopback_and_asks_for_a_key_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: dict[str, str] = {}
    monkeypatch.setattr(ray_cluster.os, "environ", told)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    ray_cluster._prepare("local")
    assert told["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert told["RAY_AUTH_MODE"] == "token"
    key = Path(told["RAY_AUTH_TOKEN_PATH"])
    assert len(key.read_text()) == 64 and key.stat().st_mode & 0o077 == 0
    assert key.parent.stat().st_mode & 0o077 == 0
    assert ray_cluster._arguments()["include_dashboard"] is False
