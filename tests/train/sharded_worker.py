"""One of two processes that tests/train/test_sharded.py starts: `sharded_worker.py DATA FOLDER`.

Each leaves what it found in FOLDER/found-<rank>.pt, then trains through the command line until it
is stopped.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from recsys_moe import cli
from recsys_moe.artifact.run_folder import CHECKPOINTS, LAST
from recsys_moe.config.settings import parse_config
from recsys_moe.model.sharded import ShardedEmbedding, join_lookup
from recsys_moe.train import sharded_strategy
from recsys_moe.train.fit import fit
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL
from tests.train.processes.stopping_fit import wait_for_signal

WORLD = 2
DIM = 4
SETTINGS: dict[str, Any] = {
    "model": {**TINY_MODEL, "dropout": 0.0, "router": {"name": "softmax"}},
    "trainer": {"batch_size": 64, "patience": 1000},
    "data": {"eval_batch_size": 25, "batchwise_rows": 25},  # 9 batches: one process has one more
}
IDS: dict[str, tuple[int, list[list[int]]]] = {
    "both ask both": (10, [[0, 9, 3, 3], [5, 0, 9, 1]]),
    "uneven rows": (7, [[6, 0, 4], [3, 6, 5]]),
    "all rows of one": (10, [[1, 2, 1], [0, 1]]),
    "all rows of the other": (10, [[9, 5], [7]]),
    "a process without ids": (10, [[2, 8], []]),
    "a process without rows": (1, [[0], [0, 0]]),
}
"""Rows of the table, and the ids that each process looks up."""


def lookups(rank: int, sparse: bool) -> dict[str, tuple[Tensor, Tensor]]:
    """Per case: values of this process, and the gradient of its rows for sum(ids' weights)."""
    found = {}
    for name, (rows, ids) in IDS.items():
        torch.manual_seed(0)
        table = ShardedEmbedding(rows, DIM, rank, WORLD)
        table.sparse = sparse
        values_BD = table(torch.tensor(ids[rank], dtype=torch.int32))
        (values_BD * weights(len(ids[rank]))).sum().backward()
        assert table.weight.grad is not None
        found[name] = values_BD.detach(), table.weight.grad.to_dense()
    return found


def weights(count: int) -> Tensor:
    """(count, 1): 1, 2, 3, ..."""
    return torch.arange(1.0, count + 1)[:, None]


def train(data: Path, out: Path, epochs: int, *, resume: str | None = None, **more: Any) -> None:
    optim = {"embeddings": more.pop("embeddings", "dense")}
    trainer = {**SETTINGS["trainer"], "max_epochs": epochs, "devices": WORLD, **more}
    fit(parse_config({**SETTINGS, "trainer": trainer, "optim": optim}), data, out, resume=resume)
    dist.barrier()  # until the first process has written the artifact


def watch_optimizers() -> list[dict[str, list[int]]]:
    """Shapes of what each optimizer holds at the end of training, tables first."""
    seen: list[dict[str, list[int]]] = []

    def on_train_end(module: RecModule) -> None:
        module.flush()
        optimizer = module.trainer.optimizers[0]
        table = module.model.user_embedding
        state = optimizer.state[table.weight]
        seen.append({name: list(values.shape) for name, values in state.items()})
        seen[-1]["weight"] = list(table.weight.shape)

    RecModule.on_train_end = on_train_end  # type: ignore[method-assign]
    return seen


def main() -> None:
    data, folder = Path(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found: dict[str, Any] = {"dense": lookups(rank, False), "sparse": lookups(rank, True)}
    if rank:
        join_lookup([ShardedEmbedding(10, DIM, rank, WORLD), nn.Embedding(10, DIM)])
    else:
        ShardedEmbedding(10, DIM, rank, WORLD)(torch.tensor([9]))
    sharded_strategy.SENT_AT_ONCE = 7 * 8 * 4  # so that tables of 61 and 41 rows go in pieces of 7
    found["states"] = watch_optimizers()
    train(data, folder / "replicated", 2)
    train(data, folder / "sharded", 2, shard_embeddings=True)
    train(data, folder / "lazy", 2, shard_embeddings=True, embeddings="lazy")
    last = folder / "alone" / CHECKPOINTS / LAST
    train(data, folder / "from-one", 2, shard_embeddings=True, resume=str(last))
    torch.save(found, folder / f"found-{rank}.pt")
    paths = ["--data", str(data), "--out", str(folder / "stopped")]
    trainer = {**SETTINGS["trainer"], "devices": WORLD}
    config = parse_config({**SETTINGS, "trainer": trainer, "optim": {"embeddings": "dense"}})
    (folder / f"stopped-{rank}.yaml").write_text(config.to_yaml())
    sets = ["--max-epochs", "100000", "--set", "trainer.shard_embeddings=true"]
    sys.argv = [
        "recsys-moe",
        "fit",
        *paths,
        "--config",
        str(folder / f"stopped-{rank}.yaml"),
        *sets,
    ]
    wait_for_signal(rank=1)
    cli.main()


if __name__ == "__main__":
    main()
