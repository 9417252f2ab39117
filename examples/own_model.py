"""The layer in a plain torch loop: two tasks, sixteen experts, of which each row visits two.

    python examples/own_model.py

Made-up rows with two kinds of users. Prints the losses before and after training, and which
experts serve each task.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recsys_moe import Experts, MoE, router

NUM_TASKS, INPUT_DIM, NUM_EXPERTS, EXPERT_DIM = 2, 32, 16, 64
STEPS, STEPS_PER_EPOCH, ROWS = 200, 50, 256


class TwoTasks(nn.Module):
    """x -> a logit per task: a shared pool of experts, a router and a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        experts = Experts(NUM_EXPERTS, INPUT_DIM, EXPERT_DIM, dropout=0.1)
        sizes = {"input_dim": INPUT_DIM, "num_experts": NUM_EXPERTS}
        routers = [router("moesart", **sizes, k=2) for _ in range(NUM_TASKS)]
        self.layer = MoE(experts, routers, seed=0)
        self.heads = nn.ModuleList(nn.Linear(EXPERT_DIM, 1) for _ in range(NUM_TASKS))

    def forward(self, x_BD: Tensor) -> tuple[Tensor, Tensor, list[list[float]]]:
        """Logits (B, T), the routers' part of the loss (), and each task's load per expert."""
        mixed_BTH, routings = self.layer(x_BD)
        logits = [head(mixed_BTH[:, task]) for task, head in enumerate(self.heads)]
        penalty = self.layer.auxiliary_loss(routings, trimmed_lasso=0.01)
        loads = [routing.selected_BE.float().mean(0).tolist() for routing in routings]
        return torch.cat(logits, -1), penalty, loads


def rows(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs, and labels (B, T) that follow another rule for each kind of input."""
    x_BD = torch.randn(count, INPUT_DIM, generator=generator)
    kind_B = x_BD[:, 0] > 0
    first_B = torch.where(kind_B, x_BD[:, 1], -x_BD[:, 1])
    second_B = torch.where(kind_B, x_BD[:, 2] * x_BD[:, 3], x_BD[:, 2])
    return x_BD, torch.stack([(first_B > 0).float(), second_B], 1)


def loss_of(logits_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """One click task, one rating task."""
    click = nn.functional.binary_cross_entropy_with_logits(logits_BT[:, 0], labels_BT[:, 0])
    return click + nn.functional.mse_loss(logits_BT[:, 1], labels_BT[:, 1])


def main() -> tuple[float, float]:
    """Train, print, and return the loss on fresh rows before and after."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model, test = TwoTasks(), rows(2048, generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    before, _ = evaluate(model, *test)
    for step in range(STEPS):
        model.layer.set_epoch(step / STEPS_PER_EPOCH)  # for routers that follow a schedule
        x_BD, labels_BT = rows(ROWS, generator)
        logits_BT, penalty, _ = model(x_BD)
        model.layer.on_step_end()  # for routers that learn from what they counted
        loss = loss_of(logits_BT, labels_BT) + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after, loads = evaluate(model, *test)
    print(f"loss before {before:.3f}, after {after:.3f}")
    for task, load in zip(("click", "rating"), loads, strict=True):
        print(f"{task}: experts in use {[e for e, share in enumerate(load) if share > 0.05]}")
    return before, after


@torch.inference_mode()
def evaluate(model: TwoTasks, x_BD: Tensor, labels_BT: Tensor) -> tuple[float, list[list[float]]]:
    """Loss on rows, and the loads. In evaluation nothing is drawn: the best two experts decide."""
    model.eval()
    logits_BT, _, loads = model(x_BD)
    model.train()
    return loss_of(logits_BT, labels_BT).item(), loads


if __name__ == "__main__":
    main()
