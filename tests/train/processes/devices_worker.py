"""One of two processes that test_devices.py starts: `devices_worker.py FOLDER`.

The first one prints, as JSON, how far two processes are from one, per router.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[3]))

from recsys_moe.artifact.evaluation import Evaluation, evaluate_model, merged
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.batches import part_bounds
from recsys_moe.data.rows import Batch
from recsys_moe.model.tasks import Counts, step_counts
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from recsys_moe.train.processes.devices import all_sum, on_first, process_count
from tests.conftest import TINY_MODEL

ROWS, WORLD = 63, 2
ROUTERS: dict[str, dict[str, Any]] = {
    "softmax": {"z_loss": 0.01},
    "topk": {"trimmed_lasso": 0.1},
    "moesart": {"trimmed_lasso": 0.1},
    "expert_choice": {},
    "cgc": {"z_loss": 0.01},
    "default_moe": {},
    "loss_free": {},
    "relu": {},
    "top_p": {},
    "expert_threshold": {},
    "kmeans": {},
    "sparsemixer": {"trimmed_lasso": 0.1},
    "pps": {"trimmed_lasso": 0.1, "coupling": 0.1},
    "shared_bottom": {},
    "single_task": {},
}
"""With penalties that are means over rows."""
OWN: dict[str, dict[str, Any]] = {"expert_choice": {"eval_group": 128}, "relu": {"l1_start": 0.1}}
DRAWING = ("moesart", "sparsemixer", "pps", "expert_threshold")
"""At random or by the batch in training mode, so their gradients are taken in evaluation mode."""


class Step(nn.Module):
    """What DDP wraps: the loss of a training step without Lightning's loop."""

    def __init__(self, module: RecModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Batch, counts: Counts) -> Tensor:
        output = self.module.model(batch.request)
        return torch.stack(self.module.losses(output, batch.labels, counts)).sum()


def settings(router: str) -> Config:
    model = {**TINY_MODEL, "dropout": 0.0, "router": {"name": router, **OWN.get(router, {})}}
    data = {"eval_batch_size": 128}
    return parse_config({"model": model, "penalties": ROUTERS[router], "data": data})


def few_labels(batch: Batch) -> Batch:
    """All labels of the second task in the first part, and none in the second."""
    labels_BT = batch.labels.clone()
    labels_BT[part_bounds(0, ROWS, 0, WORLD)[1] :, 1] = torch.nan
    return Batch(batch.user, batch.item, labels_BT)


def parts(batch: Batch, router: str) -> list[Batch]:
    """What is routed together: the whole batch, or each process' part for a router by batch."""
    world = WORLD if router == "expert_choice" else 1
    bounds = [slice(*part_bounds(0, ROWS, rank, world)) for rank in range(world)]
    return [Batch(*(values[bound] for values in batch[:3])) for bound in bounds]


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def settled(module: RecModule) -> dict[str, list[float]]:
    """What the routers learned from what they counted, by name."""
    return {name: buffer.reshape(-1).tolist() for name, buffer in module.model.moe.named_buffers()}


def one_step(config: Config, data: RecDataModule, router: str) -> dict[str, Any]:
    """`gradients`: largest difference of any from that of one process, by its largest entry.

    `settled`: before the step, after it in each process, and in one that has all rows.
    """
    whole = few_labels(data.rows("train").take(slice(ROWS)))  # type: ignore[union-attr]
    own = Batch(*(v[slice(*part_bounds(0, ROWS, dist.get_rank(), WORLD))] for v in whole[:3]))
    spread, alone = (
        RecModule(config.model_dump(mode="json"), data.schema.to_json()).train(
            router not in DRAWING
        )
        for _ in range(2)
    )
    wrapped = DistributedDataParallel(Step(spread))  # by name: it must outlive backward
    wrapped(own, step_counts(own.labels, all_sum, process_count())).backward()
    rows = torch.tensor(float(ROWS))
    counts = Counts((~whole.labels.isnan()).sum(0).float(), rows)
    for part in parts(whole, router):
        Step(alone)(part, counts).backward()
    before = settled(alone)
    spread.model.moe.on_step_end(all_sum)
    alone.model.moe.on_step_end()
    found, wanted = gradients(spread), gradients(alone)
    assert found.keys() == wanted.keys()
    distance = max(
        float((found[n] - g).abs().max() / g.abs().max().clamp(min=1e-6)) for n, g in wanted.items()
    )
    processes = on_first(settled(spread), lambda each: each)
    states = {"before": before, "processes": processes, "alone": settled(alone)}
    return {"gradients": distance, "settled": states}


def evaluations(config: Config, data: RecDataModule) -> tuple[dict[str, Any], dict[str, Any]]:
    """The evaluation of the validation split by both processes, and by this one alone."""
    module = RecModule(config.model_dump(mode="json"), data.schema.to_json()).eval()
    evaluation = Evaluation(data.schema, config)
    with torch.inference_mode():
        for batch in data.val_batches(rank=dist.get_rank(), world=WORLD):
            evaluation.update(module.model(batch.request), batch.labels)
    both = on_first(evaluation, lambda found: merged(found).result("val"))
    return both, evaluate_model(module.model, data.val_batches(), data.schema, config, split="val")


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    found: dict[str, Any] = {}
    for router in ROUTERS:
        config = settings(router)
        data = RecDataModule(Path(sys.argv[1]), config)
        both, alone = evaluations(config, data)
        found[router] = {**one_step(config, data, router), "both": both, "alone": alone}
    told = on_first(json.dumps(found["softmax"]["both"]), lambda texts: len(set(texts)))
    if dist.get_rank() == 0:
        print(json.dumps({"routers": found, "different_results": told}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
