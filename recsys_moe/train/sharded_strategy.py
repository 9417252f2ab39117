"""DDP for all but the embedding tables, whose rows and optimizer state stay with their owners.

A checkpoint holds whole tables, as that of any run: any number of devices can read it. The first
process writes the rows as they come into a file that it maps, so no process holds a whole table.
Loading maps the checkpoint, and each process copies its own rows.

Not Lightning's ModelParallelStrategy: see research/large_embeddings.md.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from recsys_moe.folders import PART
from recsys_moe.model.sharded import ShardedEmbedding, owned
from recsys_moe.train.checkpoints import WholeFiles
from recsys_moe.train.resume import load_mapped

SENT_AT_ONCE = 2**26
"""Bytes of rows that the first process holds of another one's while it writes."""
RowWise = Callable[[Tensor, ShardedEmbedding], Tensor]


class ShardedStrategy(DDPStrategy):
    """Trains a module whose ShardedEmbeddings DDP neither copies nor averages.

    `files` writes the checkpoints; beside them, in `folder`, tables are assembled.
    """

    def __init__(self, files: WholeFiles, folder: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self._files, self._folder = files, folder
        self._failure: OSError | None = None

    def configure_ddp(self) -> None:
        assert self.model is not None
        tables = self._tables()
        assert all(table.rows == self._rows(table) for table in tables.values())
        # The way that torch documents there for the time being; TorchRec takes it too.
        ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(self.model, [f"{name}.weight" for name in tables])
        super().configure_ddp()

    def _rows(self, table: ShardedEmbedding) -> slice:
        return owned(table.num_embeddings, self.global_rank, self.world_size)

    def _tables(self) -> dict[str, ShardedEmbedding]:
        """By their names in the LightningModule."""
        assert self.lightning_module is not None
        named = self.lightning_module.named_modules()
        return {name: one for name, one in named if isinstance(one, ShardedEmbedding)}

    def _by_weight(self) -> dict[Tensor, ShardedEmbedding]:
        return {table.weight: table for table in self._tables().values()}

    def lightning_module_state_dict(self) -> dict[str, Any]:
        state = dict(super().lightning_module_state_dict())
        for name, table in self._tables().items():
            state[f"{name}.weight"] = self._whole(state[f"{name}.weight"], table)
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        state = dict(checkpoint["state_dict"])
        for name, table in self._tables().items():
            state[f"{name}.weight"] = state[f"{name}.weight"][self._rows(table)]
        super().load_model_state_dict({"state_dict": state}, strict=strict)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        inner = getattr(optimizer, "_optimizer", optimizer)  # Lightning's wrapper
        return self._of_tables(super().optimizer_state(inner), inner, self._whole)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        pairs = zip(checkpoint["optimizer_states"], self.optimizers, strict=True)
        states = [self._of_tables(state, optimizer, self._own) for state, optimizer in pairs]
        super().load_optimizer_state_dict({"optimizer_states": states})

    def _of_tables(
        self, state: dict[str, Any], optimizer: torch.optim.Optimizer, change: RowWise
    ) -> dict[str, Any]:
        """`state` with `change` of every tensor that has a row for each of a table."""
        tables = self._by_weight()
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        entries = dict(state["state"])
        for number, weight in enumerate(weights):
            if weight in tables and number in entries:
                values = entries[number].items()
                table = tables[weight]
                entries[number] = {k: change(v, table) if v.dim() else v for k, v in values}
        result = {**state, "state": entries}
        if "last" in state.get("lazy", {}) and hasattr(optimizer, "last"):
            lazy = zip(state["lazy"]["last"], optimizer.last, strict=True)
            last = [change(values, tables[weight]) for values, weight in lazy]
            result["lazy"] = {**state["lazy"], "last": last}
        return result

    def _own(self, whole: Tensor, table: ShardedEmbedding) -> Tensor:
        return whole[self._rows(table)].clone()

    def _whole(self, own: Tensor, table: ShardedEmbedding) -> Tensor:
        """All rows, in the first process; no rows in the others. Every process must come here."""
        pieces = _pieces(own, table.num_embeddings, self.world_size)
        if self.global_rank:
            for owner, rows in pieces:
                if owner == self.global_rank:
                    dist.send(own[rows].contiguous(), 0)
            return own[:0]
        with _TableFile(self._folder) as file:
            for owner, rows in pieces:
                file.write(own[rows] if owner == 0 else _received(own, rows, owner))
        self._failure = self._failure or file.failure
        return file.mapped((table.num_embeddings, *own.shape[1:]), own.dtype)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        failure, self._failure = self._failure, None
        if failure is None:
            super().save_checkpoint(checkpoint, filepath, storage_options)
        else:
            self._files.failures[Path(filepath).name] = failure

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        return load_mapped(Path(checkpoint_path))


def _pieces(own: Tensor, rows: int, world: int) -> Iterator[tuple[int, slice]]:
    """All rows in order, in pieces: their owner, and where they are among the owner's."""
    step = max(SENT_AT_ONCE // max(own[:1].numel() * own.element_size(), own.element_size()), 1)
    for owner in range(world):
        bounds = owned(rows, owner, world)
        count = bounds.stop - bounds.start
        for start in range(0, count, step):
            yield owner, slice(start, min(start + step, count))


def _received(like: Tensor, rows: slice, owner: int) -> Tensor:
    values = like.new_empty(rows.stop - rows.start, *like.shape[1:])
    dist.recv(values, owner)
    return values


class _TableFile:
    """Takes rows one after the other; afterwards they are a tensor that lies on the disk.

    An error of the disk is kept in `failure`: the other processes must get rid of their rows.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"table{PART}"
        self.failure: OSError | None = None
        self._stream: IO[bytes] | None = None

    def __enter__(self) -> _TableFile:
        try:
            self._stream = self.path.open("wb")
        except OSError as error:
            self.failure = error
        return self

    def write(self, values: Tensor) -> None:
        if self.failure is not None or self._stream is None:
            return
        try:
            content = values.detach().cpu().contiguous().view(torch.uint8).numpy()
            self._stream.write(content.data)
        except OSError as error:
            self.failure = error

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:
            try:
                self._stream.close()
            except OSError as late:
                self.failure = self.failure or late

    def mapped(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The rows written; none after a failure. The file goes with the tensor."""
        try:
            if self.failure is not None:
                return torch.empty(0, *shape[1:], dtype=dtype)
            size = torch.Size(shape).numel()
            # shared: a private mapping would count as memory in full
            return torch.from_file(str(self.path), shared=True, size=size, dtype=dtype).view(shape)
        finally:
            with contextlib.suppress(OSError):  # Windows keeps it as long as it is mapped
                os.unlink(self.path)
