"""What Ray is told before it is imported, and where its files go; it needs not be there."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from recsys_moe.lab.jobs import ray_cluster

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of folders")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No folder of other tests, and none for them."""
    ray_cluster._folder.cache_clear()
    yield
    ray_cluster._folder.cache_clear()


def test_a_private_ray_listens_on_loopback_and_asks_for_a_key_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: dict[str, str] = {}
    monkeypatch.setattr(ray_cluster.os, "environ", told)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    ray_cluster._prepare("local")
    assert told["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert told["RAY_AUTH_MODE"] == "token"
    assert len(Path(told["RAY_AUTH_TOKEN_PATH"]).read_text()) == 64
    assert ray_cluster._arguments()["include_dashboard"] is False


def test_others_reach_neither_the_key_nor_rays_files_though_ray_opens_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: dict[str, str] = {}
    monkeypatch.setattr(ray_cluster.os, "environ", told)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    ray_cluster._prepare("local")
    key, rays = Path(told["RAY_AUTH_TOKEN_PATH"]), Path(ray_cluster._arguments()["_temp_dir"])
    rays.chmod(0o777)  # as Ray does as it starts
    private = [key, key.parent, key.parents[1], rays.parent]
    assert [oct(path.stat().st_mode & 0o077) for path in private] == ["0o0"] * 4
    assert rays not in key.parents and key.parents[2] == Path(tempfile.gettempdir())


@pytest.mark.parametrize(
    ("common", "kept"),
    [
        ("/var/tmp/0123456789ab", True),  # 21 bytes
        ("/var/tmp/0123456789abc", False),
        ("/tmp/" + "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 8, True),  # 5 + 2 * 8 bytes
        ("/tmp/" + "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 9, False),  # 14 characters, 23 bytes
    ],
)
def test_rays_sockets_fit_into_a_path_wherever_temporary_files_are(
    common: str, kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """macOS takes 103 bytes; Ray itself adds a session of 43 and a name of 21."""
    asked: list[str] = []

    def mkdtemp(prefix: str, dir: Path) -> str:
        asked.append(f"{dir}/{prefix}12345678")
        (tmp_path / "own").mkdir()
        return str(tmp_path / "own")

    monkeypatch.setattr(ray_cluster.tempfile, "gettempdir", lambda: common)
    monkeypatch.setattr(ray_cluster.tempfile, "mkdtemp", mkdtemp)
    rays = Path(ray_cluster._arguments()["_temp_dir"]).relative_to(tmp_path / "own")
    assert asked[0].startswith(f"{common if kept else '/tmp'}/rm-ray-")
    assert len(f"{asked[0]}/{rays}".encode()) <= 103 - 43 - 21
