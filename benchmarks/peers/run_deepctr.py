"""DeepCTR-Torch's own MMOE and `model.fit`.

One dropout rate serves experts and towers alike. All else as near as it gets: linear gates, Adam,
no metrics, and no L2 on the embeddings (their default would cost a pass over the tables per step).
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from clock import (
    DROPOUT,
    EMBEDDING_DIM,
    EXPERT_DIM,
    LEARNING_RATE,
    TOWER_DIM,
    Clock,
    load_rows,
    parse_options,
    without_missing,
)

# On import the package asks the network for its newest version; an empty module stops that.
sys.modules["requests"] = ModuleType("requests")
from deepctr_torch.inputs import SparseFeat  # noqa: E402
from deepctr_torch.models.multitask import MMOE  # noqa: E402


def main() -> None:
    options = parse_options()
    rows = load_rows(options.rows)
    sizes = {"user": rows.users + 1, "item": rows.items + 1}
    model = MMOE(
        [SparseFeat(name, size, embedding_dim=EMBEDDING_DIM) for name, size in sizes.items()],
        num_experts=options.experts,
        expert_dnn_hidden_units=(EXPERT_DIM,),
        gate_dnn_hidden_units=(),
        tower_dnn_hidden_units=(TOWER_DIM,),
        l2_reg_linear=0,
        l2_reg_embedding=0,
        dnn_dropout=DROPOUT,
        task_types=("binary", "regression"),
        task_names=("watch", "rating"),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    model.compile(optimizer, loss=["binary_crossentropy", "mse"])
    model.register_forward_pre_hook(Clock(options).tick)
    x, y = {"user": rows.user, "item": rows.item}, without_missing(rows.labels)
    model.fit(x, y, batch_size=options.batch_size, epochs=1)


if __name__ == "__main__":
    main()
