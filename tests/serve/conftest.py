"""A service over a small trained model, called through ASGI without a socket."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from safetensors.torch import load_file, save_file

from recsys_moe.artifact.model_folder import save_artifact
from recsys_moe.config.build import build_model
from recsys_moe.config.settings import parse_config
from recsys_moe.files import sha256_file
from recsys_moe.schema import Schema
from recsys_moe.serve.app import build_app
from recsys_moe.serve.limits import Limits
from recsys_moe.serve.metrics import Metrics
from recsys_moe.serve.models import Models
from recsys_moe.serve.server import _listener
from recsys_moe.serve.service import Service
from tests.conftest import TINY_MODEL

KEY = "a-key-for-tests"


class Caller:
    """Sends requests to one service; each call has an event loop of its own."""

    def __init__(
        self,
        folder: Path,
        limits: Limits | None = None,
        key: str | None = None,
        retrieve: int | None = None,
    ) -> None:
        metrics = Metrics()
        self.models = Models(folder, metrics, retrieve=retrieve)
        self.service = Service(self.models, metrics, limits or Limits(), key=key)
        self.app = build_app(self.service)

    def together(self, work: Callable[[httpx.AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
        async def go() -> Any:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await work(client)

        return asyncio.run(go())

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        response = self.together(lambda client: client.request(method, path, **options))
        assert isinstance(response, httpx.Response)
        return response

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self("POST", path, json=body, **options)


class Threaded:
    """A service on a real socket, served by a thread of this process; it wants the key."""

    def __init__(self, folder: Path) -> None:
        caller = Caller(folder, key=KEY)
        self.batcher, self.listener = caller.service.batcher, _listener("127.0.0.1", 0)
        config = uvicorn.Config(
            caller.app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)  # ours handles signals, which no thread may
        self._thread = threading.Thread(target=self.server.run, args=([self.listener],))
        self._thread.start()
        address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.client = httpx.Client(base_url=address, headers={"Authorization": f"Bearer {KEY}"})

    def stop(self) -> None:
        """Serves no more; may be called again."""
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.batcher.close()


@contextmanager
def threaded(folder: Path) -> Iterator[Threaded]:
    server = Threaded(folder)
    try:
        yield server
    finally:
        server.client.close()
        server.stop()
        server.listener.close()


@pytest.fixture(scope="session")
def caller(run: Path) -> Caller:
    return Caller(run)


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    """A copy of the run's model that a test may replace."""
    return Path(shutil.copytree(run / "model", tmp_path / "model"))


@pytest.fixture(scope="session")
def rivals(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model whose rows compete for experts. Read only."""
    config = parse_config({"model": {**TINY_MODEL, "router": {"name": "expert_choice"}}})
    data, out = run / "model", tmp_path_factory.mktemp("rivals") / "model"
    weights = build_model(config, Schema.load(data)).state_dict()
    seen = load_file(data / "seen.safetensors")
    save_artifact(out, weights, config, data, seen=seen, card={}, calibrations={})
    return out


def retrained(folder: Path, factor: float = 1.1) -> None:
    """Put a model with other weights in the place of the one in `folder`."""
    new = Path(shutil.copytree(folder, folder.with_name("new")))
    weights = new / "weights.safetensors"
    save_file({name: factor * value for name, value in load_file(weights).items()}, weights)
    sealed(new, weights.name)
    folder.rename(folder.with_name("old"))
    new.rename(folder)


def sealed(folder: Path, name: str) -> None:
    """Note in the manifest what a test has written into a file."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"][name] = sha256_file(folder / name)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
