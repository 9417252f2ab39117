"""Tables divided among two devices train, save and go on as whole ones do.

Processes are real, over gloo on a CPU, and end or are killed within a limit.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from recsys_moe.artifact.run_folder import BEST, CHECKPOINTS, LAST
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.model import sharded
from recsys_moe.model.sharded import ShardedEmbedding, owned
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.sharded_strategy import _TableFile
from tests.train.sharded_worker import DIM, IDS, SETTINGS, WORLD, weights

ROOT = Path(__file__).parents[2]
LIMIT = ["timeout", "-s", "KILL", "240"]
"""Seconds for each process, which is killed outright: one in a collective heeds no other signal."""


def fit_alone(data: Path, out: Path, epochs: int, *, resume: str | None = None) -> None:
    """One device, which has whole tables whatever the key says."""
    trainer = {**SETTINGS["trainer"], "max_epochs": epochs, "shard_embeddings": True}
    config = {**SETTINGS, "trainer": trainer, "optim": {"embeddings": "dense"}}
    fit(parse_config(config), data, out, resume=resume)


@pytest.fixture(scope="module")
def two_processes(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes of sharded_worker.py leave, stopped by SIGTERM to the second one."""
    folder = tmp_path_factory.mktemp("sharded")
    fit_alone(prepared, folder / "alone", 1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    common = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(WORLD)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": str(ROOT)}
    script = [*LIMIT, sys.executable, str(Path(__file__).with_name("sharded_worker.py"))]
    script += [str(prepared), str(folder)]
    workers = []
    for rank in range(WORLD):
        environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (folder / f"log-{rank}").open("w") as log:
            workers.append(subprocess.Popen(script, env=environment, stderr=log))
    _stop_when_training(folder, workers)
    codes = [worker.wait() for worker in workers]
    assert codes == [128 + signal.SIGTERM] * WORLD, logs(folder)
    return folder


def logs(folder: Path) -> str:
    return "\n".join((folder / f"log-{rank}").read_text()[-3000:] for rank in range(WORLD))


def _stop_when_training(folder: Path, workers: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM to the second process, which waits for it, once the last run has a checkpoint."""
    while all(worker.poll() is None for worker in workers):
        if (folder / "stopped" / CHECKPOINTS / LAST).is_file():
            workers[1].send_signal(signal.SIGTERM)  # `timeout` passes it on
            return
        with pytest.raises(subprocess.TimeoutExpired):
            workers[0].wait(0.1)


def found(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"found-{rank}.pt") for rank in range(WORLD)]


def whole(rows: int) -> nn.Embedding:
    """The table as one process draws it."""
    torch.manual_seed(0)
    table = nn.Embedding(rows, DIM)
    nn.init.uniform_(table.weight, -0.05, 0.05)
    return table


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("case", IDS)
def test_a_lookup_and_its_gradients_are_those_of_the_whole_table(
    two_processes: Path, case: str, kind: str
) -> None:
    """Gradients are averaged over processes: as DDP does, half the sum."""
    rows, ids = IDS[case]
    table = whole(rows)
    for rank in range(WORLD):
        values_BD, _ = found(two_processes)[rank][kind][case]
        wanted_BD = table(torch.tensor(ids[rank], dtype=torch.int64))
        assert torch.equal(values_BD, wanted_BD)
        (wanted_BD * weights(len(ids[rank])) / WORLD).sum().backward()
    assert table.weight.grad is not None
    for rank in range(WORLD):
        _, gradient = found(two_processes)[rank][kind][case]
        assert torch.allclose(gradient, table.weight.grad[owned(rows, rank, WORLD)], atol=1e-6)


@pytest.mark.parametrize("rows", [1, 5, 61, 1000])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_parts_of_a_table_are_what_one_process_draws(
    rows: int, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of 64 numbers; also what is drawn afterwards is the same."""
    monkeypatch.setattr(sharded, "DRAWN_AT_ONCE", 64)
    table, after = whole(rows), torch.rand(3)
    parts = []
    for rank in range(world):
        torch.manual_seed(0)
        parts.append(ShardedEmbedding(rows, DIM, rank, world).weight)
        assert torch.equal(torch.rand(3), after)
    assert torch.equal(torch.cat(parts), table.weight)


def test_rows_are_owned_once_and_as_torch_shards_them() -> None:
    for rows in range(1, 20):
        for world in range(1, 6):
            parts = [owned(rows, rank, world) for rank in range(world)]
            sizes = [part.stop - part.start for part in parts]
            wanted = [len(chunk) for chunk in torch.arange(rows).chunk(world)]
            assert sizes == wanted + [0] * (world - len(wanted))
            assert [row for part in parts for row in range(part.start, part.stop)] == [*range(rows)]


def checkpoint(run: Path, name: str = LAST) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(run / CHECKPOINTS / name, weights_only=True)
    return state


def tensors(content: Any, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of nested dicts and lists, by their path."""
    if isinstance(content, Tensor):
        return {prefix: content}
    if not isinstance(content, dict | list):
        return {}
    items = content.items() if isinstance(content, dict) else enumerate(content)
    return {k: v for key, value in items for k, v in tensors(value, f"{prefix}/{key}").items()}


def same(one: Any, other: Any) -> bool:
    """The same tensors with the same names and shapes, within 1e-6."""
    first, second = tensors(one), tensors(other)
    assert first.keys() == second.keys() and first
    return all(
        first[name].shape == second[name].shape
        and torch.allclose(first[name].double(), second[name].double(), rtol=0, atol=1e-6)
        for name in first
    )


@pytest.mark.parametrize("name", ["sharded", "from-one"])
@pytest.mark.parametrize("part", ["state_dict", "optimizer_states"])
def test_fifty_steps_end_where_those_of_whole_tables_do(
    two_processes: Path, name: str, part: str
) -> None:
    """Two epochs of 25 steps; of from-one the first was on one device, so it went on 1 -> 2."""
    assert same(
        checkpoint(two_processes / name)[part], checkpoint(two_processes / "replicated")[part]
    )


def test_lazy_rows_end_where_dense_ones_do(two_processes: Path) -> None:
    """To the accuracy of LazyAdam in its first steps, see tests/model/test_lazy_adam.py."""
    lazy, dense = (checkpoint(two_processes / name)["state_dict"] for name in ("lazy", "sharded"))
    assert same(lazy, dense)


@pytest.mark.parametrize("name", [LAST, BEST])
def test_a_checkpoint_holds_whole_tables(two_processes: Path, name: str) -> None:
    state = checkpoint(two_processes / "sharded", name)
    # 60 users and 40 items, and a row each for ids never seen; embeddings of 8
    assert state["state_dict"]["model.user_embedding.weight"].shape == (61, 8)
    moments = state["optimizer_states"][0]["state"]
    assert [moments[i]["exp_avg"].shape for i in range(2)] == [(61, 8), (41, 8)]
    assert len(list((two_processes / "sharded" / CHECKPOINTS).glob("*.part"))) == 0


def test_each_process_holds_its_own_rows_and_their_moments_alone(two_processes: Path) -> None:
    """Of 61 rows the first one owns ceil(61 / 2) = 31 and the second one 30."""
    for own, process in zip((31, 30), found(two_processes), strict=True):
        replicated, *divided = process["states"]
        assert replicated["weight"] == [61, 8]
        assert len(divided) == 3
        for shapes in divided:
            for name in ("weight", "exp_avg", "exp_avg_sq"):
                assert shapes[name] == [own, 8], name


def test_the_artifact_is_that_of_whole_tables(two_processes: Path) -> None:
    one, other = (two_processes / name / "model" for name in ("replicated", "sharded"))
    assert same(*(load_file(model / "weights.safetensors") for model in (one, other)))
    assert {f.name for f in one.iterdir()} == {f.name for f in other.iterdir()}
    for file in ("users.parquet", "items.parquet", "seen.safetensors", "schema.json"):
        assert (one / file).read_bytes() == (other / file).read_bytes()


def test_one_device_goes_on_where_two_have_stopped(
    two_processes: Path, prepared: Path, tmp_path: Path
) -> None:
    """The third epoch ends where that of one device throughout does."""
    shutil.copytree(two_processes / "sharded", tmp_path / "run")
    before = checkpoint(tmp_path / "run")
    fit_alone(prepared, tmp_path / "run", 3, resume="auto")
    fit_alone(prepared, tmp_path / "straight", 3)
    after, straight = (checkpoint(tmp_path / name) for name in ("run", "straight"))
    for part in ("state_dict", "optimizer_states"):
        assert same(after[part], straight[part])
        assert not same(after[part], before[part])


def test_a_signal_to_one_process_stops_both_and_one_device_goes_on(
    two_processes: Path, prepared: Path, tmp_path: Path
) -> None:
    """The exit codes are in the fixture."""
    assert "error: interrupted; epoch" in (two_processes / "log-0").read_text()
    shutil.copytree(two_processes / "stopped", tmp_path / "run")
    assert checkpoint(tmp_path / "run")["global_step"] == 32  # in the second epoch
    fit_alone(prepared, tmp_path / "run", 3, resume="auto")
    fit_alone(prepared, tmp_path / "straight", 3)
    one, other = (checkpoint(tmp_path / name)["state_dict"] for name in ("run", "straight"))
    assert same(one, other)


def test_all_processes_have_as_many_batches_to_evaluate(prepared: Path) -> None:
    """225 rows are 9 batches of 25, 4 and 5 of them, so one process gets an empty one besides."""
    trainer = {**SETTINGS["trainer"], "devices": 2, "shard_embeddings": True}
    data = RecDataModule(prepared, parse_config({**SETTINGS, "trainer": trainer}))
    sizes = []
    for rank in range(2):
        data.trainer = type("Trainer", (), {"global_rank": rank, "world_size": 2})()
        batches = data.val_dataloader()
        sizes.append([len(batch.user) for batch in batches])
        assert len(batches) == len(sizes[-1])
    assert sorted(map(sorted, sizes)) == [[0, 25, 25, 25, 25], [25] * 5]


def test_a_disk_without_room_is_kept_as_a_failure_and_not_raised(tmp_path: Path) -> None:
    """The other processes must get rid of their rows first."""
    rows = torch.arange(6.0).view(3, 2)
    with _TableFile(tmp_path) as file:
        file.write(rows[:1])
        file.write(rows[1:])
    assert file.failure is None
    assert torch.equal(file.mapped((3, 2), torch.float32), rows)
    assert list(tmp_path.iterdir()) == []
    full = Path("/dev/full")
    if full.exists():
        with _TableFile(tmp_path) as file:
            assert file._stream is not None
            file._stream.close()
            file._stream = full.open("wb", buffering=0)
            file.write(rows)
            file.write(rows)
        assert file.failure is not None and file.failure.errno == errno.ENOSPC
    with _TableFile(tmp_path / "missing") as file:
        file.write(rows)
    assert isinstance(file.failure, FileNotFoundError)
    assert len(file.mapped((3, 2), torch.float32)) == 0


def test_half_precision_that_scales_gradients_is_refused() -> None:
    settings = {"devices": 2, "shard_embeddings": True, "precision": "16-mixed"}
    with pytest.raises(ConfigError, match=r"trainer.shard_embeddings=true, got 16-mixed"):
        parse_config({"trainer": settings})
    parse_config({"trainer": {**settings, "devices": 1}})
