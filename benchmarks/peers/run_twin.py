"""The dense masked twin: our model as one writes it first, in a plain PyTorch loop.

Every expert is evaluated on every row, all in one matmul; the softmax over the k largest logits
masks what was not chosen. nn.Dropout, torch.optim.Adam as it comes, batches by index slicing.
Axes: B batch, T tasks, E experts, D input width, H expert width.
"""

from __future__ import annotations

import clock
import torch
import torch.nn.functional as F
from torch import Tensor, nn

TASKS = 2


class DenseTwin(nn.Module):
    def __init__(self, users: int, items: int, experts: int) -> None:
        super().__init__()
        width, hidden, tower = 2 * clock.EMBEDDING_DIM, clock.EXPERT_DIM, clock.TOWER_DIM
        self.user = nn.Embedding(users + 1, clock.EMBEDDING_DIM)
        self.item = nn.Embedding(items + 1, clock.EMBEDDING_DIM)
        self.experts = nn.Linear(width, experts * hidden)
        self.gate = nn.Linear(width, TASKS * experts)
        self.dropout = nn.Dropout(clock.DROPOUT)
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, tower), nn.ReLU(), nn.Linear(tower, 1))
            for _ in range(TASKS)
        )

    def forward(self, user_B: Tensor, item_B: Tensor) -> Tensor:
        """Logits (B, T)."""
        x_BD = torch.cat([self.user(user_B), self.item(item_B)], -1)
        hidden_BEH = self.experts(x_BD).relu().unflatten(-1, (-1, clock.EXPERT_DIM))
        logits_BTE = self.gate(x_BD).unflatten(-1, (TASKS, -1))
        top = logits_BTE.topk(clock.K)
        masked_BTE = torch.full_like(logits_BTE, -torch.inf).scatter(-1, top.indices, top.values)
        mixed_BTH = masked_BTE.softmax(-1) @ self.dropout(hidden_BEH)
        return torch.cat([tower(mixed_BTH[:, t]) for t, tower in enumerate(self.towers)], -1)


def loss_of(logits_BT: Tensor, labels_BT: Tensor) -> Tensor:
    rated_B = ~labels_BT[:, clock.RATING].isnan()
    watch = F.binary_cross_entropy_with_logits(logits_BT[:, clock.WATCH], labels_BT[:, clock.WATCH])
    rating = F.mse_loss(logits_BT[rated_B, clock.RATING], labels_BT[rated_B, clock.RATING])
    return 0.9 * watch + 0.1 * rating


def main() -> None:
    options = clock.read_options()
    rows = clock.load_rows(options.rows)
    user, item, labels = (torch.from_numpy(column) for column in rows[:3])
    model = DenseTwin(rows.users, rows.items, options.experts)
    model.register_forward_pre_hook(clock.Clock(options).tick)
    optimizer = torch.optim.Adam(model.parameters(), lr=clock.LEARNING_RATE)
    for chosen_B in torch.randperm(len(user)).split(options.batch_size):
        loss = loss_of(model(user[chosen_B], item[chosen_B]), labels[chosen_B])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
