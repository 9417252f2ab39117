"""A new model takes over without a dropped request; a bad one is refused and the old one stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.errors import DataError
from recsys_moe.inference.predictor import Predictor
from recsys_moe.serve.models import fingerprint, load
from tests.serve.conftest import KEY, Caller, retrained, sealed

PAIR = {"users": [1], "items": [2]}
RIGHT = {"Authorization": f"Bearer {KEY}"}


def damage(folder: Path, *, manifest_too: bool = True) -> None:
    """Weights that were cut short, beside a new manifest or that of before."""
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    if not manifest_too:
        return
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")


def test_requests_around_a_replacement_are_all_answered(folder: Path) -> None:
    caller = Caller(folder)
    old = fingerprint(folder)

    async def ask(client: Any) -> list[Any]:
        retrained(folder)
        following = asyncio.ensure_future(caller.models.follow())
        answers = []
        while not following.done():
            answers += await asyncio.gather(*(client.post("/predict", json=PAIR) for _ in range(5)))
            await asyncio.sleep(0)
        return [*answers, await client.post("/predict", json=PAIR)]

    answers = caller.together(ask)
    assert {answer.status_code for answer in answers} == {200}
    assert answers[0].json()["model"] == old
    assert answers[-1].json()["model"] == fingerprint(folder) != old
    scores = [answer.json()["scores"]["watch"][0] for answer in (answers[0], answers[-1])]
    assert scores[0] != scores[1]


def test_a_missing_folder_changes_nothing(folder: Path) -> None:
    caller = Caller(folder)
    folder.rename(folder.with_name("away"))
    caller.together(lambda client: caller.models.follow())
    assert caller.post("/predict", PAIR).status_code == 200


def test_reload_is_there_with_a_key_only(folder: Path) -> None:
    assert Caller(folder)("POST", "/reload").status_code == 404
    caller = Caller(folder, key=KEY)
    assert caller("POST", "/reload").status_code == 401
    assert caller("POST", "/reload", headers=RIGHT).json()["changed"] is False
    retrained(folder)
    answer = caller("POST", "/reload", headers=RIGHT).json()
    assert answer == {"model": fingerprint(folder), "changed": True}


@pytest.mark.parametrize("manifest_too", [True, False])
def test_reload_says_why_a_model_is_refused(folder: Path, manifest_too: bool) -> None:
    caller = Caller(folder, key=KEY)
    damage(folder, manifest_too=manifest_too)
    answer = caller("POST", "/reload", headers=RIGHT)
    assert answer.status_code == 409
    assert "old model stays" in answer.json()["error"]
    assert str(folder) not in answer.json()["error"]


def test_a_model_without_finite_scores_is_refused(folder: Path) -> None:
    retrained(folder, factor=float("nan"))
    with pytest.raises(DataError, match="not finite"):
        Caller(folder)


@pytest.mark.parametrize("asked", [True, False])
def test_a_refusal_is_logged_once_however_often_the_watch_looks(
    asked: bool, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caller = Caller(folder, key=KEY)
    config = folder / "config.yaml"
    config.write_text(config.read_text() + "modle: {}\n")  # a ConfigError, no DataError
    sealed(folder, config.name)
    before = caller.post("/predict", PAIR, headers=RIGHT).json()
    if asked:
        assert caller("POST", "/reload", headers=RIGHT).status_code == 409
    for _ in range(2):
        caller.together(lambda client: caller.models.follow())
    assert ["refused" in record.message for record in caplog.records] == [True]
    assert "modle" in caplog.text and "Traceback" not in caplog.text
    assert caller.post("/predict", PAIR, headers=RIGHT).json() == before


def test_a_folder_that_changes_while_it_is_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Predictor.load

    def slowly(path: Path, store: Any) -> Predictor:
        predictor = read(path, store)
        manifest = folder / "manifest.json"
        manifest.write_text(manifest.read_text() + "\n")
        return predictor

    monkeypatch.setattr(Predictor, "load", slowly)
    with pytest.raises(DataError, match="changed while it was being read"):
        load(folder)
