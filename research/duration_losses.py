"""Which loss for watch time: three laws of labels, four losses, one small factorisation.

    python -m research.duration_losses

Labels are positive and heavy-tailed: log-normal (sigma 1), gamma (shape 0.7), and capped (a
log-normal time that ends at the item's length, as videos do). Per law and loss: concordance, MAE,
and the gamma and squared deviance explained (D2) on held-out rows, mean of five seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from sklearn.metrics import mean_absolute_error
from torch import Tensor, nn

from recsys_moe.kinds.curves import concordance

USERS, ITEMS, ROWS, STEPS = 300, 200, 30_000, 400


def labels(law: str, f_N: Tensor, item_N: Tensor) -> Tensor:
    mean_N = 60 * f_N.exp()
    if law == "gamma":
        return torch.distributions.Gamma(0.7, 0.7 / mean_N).sample().clamp(min=0.1)
    time_N = mean_N * (torch.randn(len(f_N)) - 0.5).exp()
    if law == "capped":
        length_I = 40 * (0.8 * torch.randn(ITEMS)).exp()
        time_N = time_N.minimum(length_I[item_N])
    return time_N.clamp(min=0.1)


def log_normal(z_NO: Tensor, y_N: Tensor) -> Tensor:
    return (z_NO[:, 0] - y_N.log()).square()


def log_normal_scale(z_NO: Tensor, y_N: Tensor) -> Tensor:
    return (z_NO[:, 0] - y_N.log()).square() * torch.exp(-z_NO[:, 1]) + z_NO[:, 1]


def gamma(z_NO: Tensor, y_N: Tensor) -> Tensor:
    return y_N * torch.exp(-z_NO[:, 0]) + z_NO[:, 0]


def tweedie(z_NO: Tensor, y_N: Tensor) -> Tensor:
    """Power 1.5: 2 y exp(-z / 2) + 2 exp(z / 2), up to a constant."""
    return 2 * y_N * torch.exp(-z_NO[:, 0] / 2) + 2 * torch.exp(z_NO[:, 0] / 2)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "log-normal": log_normal,
    "log-normal, scale per row": log_normal_scale,
    "gamma": gamma,
    "Tweedie 1.5": tweedie,
}


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = (nn.Embedding(n, 8) for n in (USERS, ITEMS))
        self.users, self.items = (nn.Embedding(n, 2) for n in (USERS, ITEMS))
        self.shift = nn.Parameter(torch.zeros(2))
        for table in (self.user, self.item, self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, user_N: Tensor, item_N: Tensor) -> Tensor:
        both_N = (self.user(user_N) * self.item(item_N)).sum(1, keepdim=True)
        alone_NO = self.users(user_N) + self.items(item_N) + self.shift
        return torch.cat([both_N, torch.zeros_like(both_N)], 1) + alone_NO


def figures(law: str, name: str, seed: int) -> list[float]:
    torch.manual_seed(seed)
    user_N, item_N = torch.randint(USERS, (ROWS,)), torch.randint(ITEMS, (ROWS,))
    a, b = torch.randn(USERS, 3) * 0.5, torch.randn(ITEMS, 3) * 0.5
    f_N = (a[user_N] * b[item_N]).sum(1) + 0.5 * a[user_N, 0] + 0.5 * b[item_N, 1]
    y_N = labels(law, f_N, item_N)
    train, test = slice(0, ROWS * 2 // 3), slice(ROWS * 2 // 3, None)
    model = Factors()
    with torch.no_grad():
        model.shift[0] = y_N[train].log().mean() if "log" in name else y_N[train].mean().log()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=1e-3)
    unit = 1.0 if name != "Tweedie 1.5" else float(y_N[train].mean().sqrt())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = LOSSES[name](model(user_N[train], item_N[train]), y_N[train]).mean() / unit
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        z_NO, y_M = model(user_N, item_N), y_N[test]
        mean_N = z_NO[:, 0].exp()
        if name == "log-normal":
            mean_N = mean_N * (log_normal(z_NO[train], y_N[train]).mean() / 2).exp()
        elif name == "log-normal, scale per row":
            mean_N = mean_N * (z_NO[:, 1].exp() / 2).exp()
    p_M, null = mean_N[test].double(), float(y_M.mean())
    y_M = y_M.double()
    d2 = 1 - float((y_M / p_M - (y_M / p_M).log() - 1).mean()) / float(
        (y_M / null - (y_M / null).log() - 1).mean()
    )
    r2 = 1 - float((y_M - p_M).square().mean() / (y_M - null).square().mean())
    return [concordance(p_M, y_M), mean_absolute_error(y_M, p_M), d2, r2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    print(f"{'law':12}{'loss':28}{'C':>8}{'MAE':>9}{'D2 gamma':>10}{'R2':>8}")
    for law in ("log-normal", "gamma", "capped"):
        for name in LOSSES:
            found = np.mean([figures(law, name, seed) for seed in range(seeds)], axis=0)
            c, mae, d2, r2 = found
            print(f"{law:12}{name:28}{c:8.4f}{mae:9.2f}{d2:10.4f}{r2:8.4f}")


if __name__ == "__main__":
    main()
