"""torch-rechub's own MMOE, data generator and MTLTrainer.

Their MLP has a BatchNorm per layer that cannot be switched off. All else as near as it gets:
linear gates, dropout in the experts only, Adam without weight decay, no scheduler, no logger.
"""

from __future__ import annotations

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
from torch_rechub.basic.features import SparseFeature
from torch_rechub.models.multi_task import MMOE
from torch_rechub.trainers import MTLTrainer
from torch_rechub.utils.data import DataGenerator

TASKS = ["classification", "regression"]


def main() -> None:
    options = parse_options()
    rows = load_rows(options.rows)
    sizes = {"user": rows.users + 1, "item": rows.items + 1}
    features = [SparseFeature(name, size, EMBEDDING_DIM) for name, size in sizes.items()]
    model = MMOE(
        features,
        TASKS,
        options.experts,
        expert_params={"dims": [EXPERT_DIM], "activation": "relu", "dropout": DROPOUT},
        tower_params_list=[{"dims": [TOWER_DIM], "activation": "relu"} for _ in TASKS],
    )
    x, y = {"user": rows.user, "item": rows.item}, without_missing(rows.labels)
    some = {name: column[: options.batch_size] for name, column in x.items()}
    held_out = {"x_val": some, "y_val": y[: options.batch_size], "x_test": some, "y_test": y}
    train, val, _ = DataGenerator(x, y).generate_dataloader(
        batch_size=options.batch_size, **held_out
    )
    trainer = MTLTrainer(
        model, TASKS, optimizer_params={"lr": LEARNING_RATE}, n_epoch=1, model_path=options.out
    )
    model.register_forward_pre_hook(Clock(options).tick)
    trainer.fit(train, val)


if __name__ == "__main__":
    main()
