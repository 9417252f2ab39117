"""The peers' own models in their own training loops, in the environment of requirements.txt.

All else as near as it gets: linear gates, Adam without weight decay, no metrics, no logger.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from types import ModuleType
from typing import Any

import clock
import torch


def main() -> None:
    options = clock.read_options()
    {"rechub": rechub, "rechub_bf16": rechub, "deepctr": deepctr}[options.contender](
        options, clock.load_rows(options.rows)
    )


def rechub(options: Namespace, rows: clock.Rows) -> None:
    """torch-rechub's MMOE, data generator and MTLTrainer.

    Their MLP has a BatchNorm per layer that cannot be switched off; dropout in the experts only.
    """
    from torch_rechub.basic.features import SparseFeature
    from torch_rechub.models.multi_task import MMOE
    from torch_rechub.trainers import MTLTrainer
    from torch_rechub.utils.data import DataGenerator

    tasks = ["classification", "regression"]
    model = MMOE(
        [SparseFeature(name, size, clock.EMBEDDING_DIM) for name, size in rows.sizes().items()],
        tasks,
        options.experts,
        expert_params={"dims": [clock.EXPERT_DIM], "activation": "relu", "dropout": clock.DROPOUT},
        tower_params_list=[{"dims": [clock.TOWER_DIM], "activation": "relu"} for _ in tasks],
    )
    x, y = {"user": rows.user, "item": rows.item}, clock.without_missing(rows.labels)
    some = {name: column[: options.batch_size] for name, column in x.items()}
    held_out = {"x_val": some, "y_val": y[: options.batch_size], "x_test": some, "y_test": y}
    generator, adam = DataGenerator(x, y), {"lr": clock.LEARNING_RATE}
    train, val, _ = generator.generate_dataloader(batch_size=options.batch_size, **held_out)
    if options.contender == "rechub_bf16":
        compute_in_bf16(model)
    trainer = MTLTrainer(model, tasks, optimizer_params=adam, n_epoch=1, model_path=options.out)
    model.register_forward_pre_hook(clock.Clock(options).tick)
    trainer.fit(train, val)


def compute_in_bf16(model: torch.nn.Module) -> None:
    """What their users could put around it: autocast of the forward pass, losses in float32."""
    forward = model.forward

    def cast(*given: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*given).float()

    model.forward = cast  # type: ignore[method-assign]


def deepctr(options: Namespace, rows: clock.Rows) -> None:
    """DeepCTR-Torch's MMOE and `model.fit`.

    One dropout rate serves experts and towers alike. No L2 on the embeddings: their default would
    cost a pass over the tables per step.
    """
    # On import the package asks the network for its newest version; an empty module stops that.
    sys.modules["requests"] = ModuleType("requests")
    from deepctr_torch.inputs import SparseFeat
    from deepctr_torch.models.multitask import MMOE

    sizes, width = rows.sizes(), clock.EMBEDDING_DIM
    model = MMOE(
        [SparseFeat(name, size, embedding_dim=width) for name, size in sizes.items()],
        num_experts=options.experts,
        expert_dnn_hidden_units=(clock.EXPERT_DIM,),
        gate_dnn_hidden_units=(),
        tower_dnn_hidden_units=(clock.TOWER_DIM,),
        l2_reg_linear=0,
        l2_reg_embedding=0,
        dnn_dropout=clock.DROPOUT,
        task_types=("binary", "regression"),
        task_names=("watch", "rating"),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=clock.LEARNING_RATE)
    model.compile(optimizer, loss=["binary_crossentropy", "mse"])
    model.register_forward_pre_hook(clock.Clock(options).tick)
    x, y = {"user": rows.user, "item": rows.item}, clock.without_missing(rows.labels)
    model.fit(x, y, batch_size=options.batch_size, epochs=1)


if __name__ == "__main__":
    main()
