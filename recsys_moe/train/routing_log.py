"""The callback that writes routing.safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from safetensors.torch import save
from torch import Tensor

from recsys_moe.artifact.routing_history import ROWS, spread_rows, take_rows, top_experts
from recsys_moe.data.rows import Columns
from recsys_moe.files import replacing


class RoutingLog(Callback):
    """Adds the top experts of a sample of validation rows to routing.safetensors after each epoch,
    by the weights that were validated.

    Each checkpoint holds the content, so that a resumed run writes the file of an uninterrupted
    one. On several devices the first process writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content: dict[str, Tensor] = {}
        self._sample: Columns | None = None

    def state_dict(self) -> dict[str, Any]:
        return dict(self._content)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # Lightning does not save an empty state.
        self._content = dict(checkpoint["callbacks"].get(self.state_key, {}))
        if trainer.is_global_zero and self._content:
            self._write()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model: Any = pl_module.model
        if not trainer.is_global_zero or not model.routers:
            return
        rows = trainer.datamodule.rows("val")  # type: ignore[attr-defined]
        if "row" not in self._content:
            group = max(router.config.eval_rows for router in model.routers)
            self._content["row"] = spread_rows(len(rows), ROWS, group)
        if self._sample is None:
            self._sample = take_rows(rows, self._content["row"])
        request = self._sample.request.to(pl_module.device)
        self._add("epoch", torch.tensor(trainer.current_epoch + 1))
        with pl_module.average.in_use(pl_module):  # type: ignore[union-attr, operator]
            self._add("top", top_experts(model, request))
        self._write()

    def _add(self, name: str, values: Tensor) -> None:
        before = self._content.get(name, values[None][:0])
        self._content[name] = torch.cat([before, values[None]])

    def _write(self) -> None:
        with replacing(self.path) as stream:
            stream.write(save(self._content))
