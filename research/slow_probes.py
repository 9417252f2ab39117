"""What a model says about its experts and gates after an epoch, for slow_start.py.

Axes: B rows, T tasks, E experts, H expert width, C chunks of rows as large as a training batch,
R draws, G numbers of a gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from recsys_moe.data.rows import Columns
from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.model.output import Output
from recsys_moe.routers import Routing
from recsys_moe.train.module import RecModule

Row = dict[str, Any]


def expert_outputs(model: MultiTaskMoE, x_BD: Tensor) -> Tensor:
    """Of every expert on every row, without dropout. (B, E, H)"""
    experts = model.moe.experts
    x_EBD = x_BD.expand(len(experts.bias_EH), -1, -1)
    hidden_EBH = torch.baddbmm(experts.bias_EH[:, None], x_EBD, experts.kernel_EDH).relu_()
    return hidden_EBH.transpose(0, 1).contiguous()


@torch.no_grad()
def gate_state(model: MultiTaskMoE, sample: Columns, tasks: Sequence[str]) -> Row:
    """How sure the gates are, and whether they tell rows apart. Nothing is drawn.

    `information`: of a row about the expert, in nats: the entropy of the mean of g less the mean
    entropy of g.
    """
    model.eval()
    x_BD = model.encode(sample.request)
    row: Row = {}
    for task, router in zip(tasks, model.routers, strict=True):
        routing = router(x_BD, sample.user)
        probs_BE, logits_BE = routing.probs_BE, routing.logits_BE
        entropy = _entropy(probs_BE).mean()
        row |= {
            f"entropy.{task}": entropy.item(),
            f"effective_experts.{task}": entropy.exp().item(),
            f"largest_g.{task}": probs_BE.amax(-1).mean().item(),
            f"information.{task}": (_entropy(probs_BE.mean(0)) - entropy).item(),
            f"logit_std.{task}": logits_BE.std(-1, correction=min(1, probs_BE.shape[-1] - 1))
            .mean()
            .item(),
        }
    for name in ("user", "item"):
        row[f"{name}_embedding_std"] = getattr(model, f"{name}_embedding").weight.std().item()
    return row


def _entropy(probs_BE: Tensor) -> Tensor:
    return torch.special.entr(probs_BE).sum(-1)


@torch.no_grad()
def expert_distance(model: MultiTaskMoE, sample: Columns, tasks: Sequence[str]) -> Row:
    """How much experts differ on the same rows, as vectors and in what the towers make of them.

    `expert_cosine`: mean over rows and pairs. `expert_difference`: root of the mean square of
    E_i - E_j over that of E_i. `expert_share`: of the variance of outputs over rows and experts,
    what is left when the row is known. `logit_share.TASK`: the same for the logit of the tower
    behind one expert alone. All NaN with one expert.
    """
    hidden_BEH = expert_outputs(model, model.encode(sample.request))
    count = hidden_BEH.shape[1]
    pairs = count * (count - 1) or math.nan
    unit_BEH = torch.nn.functional.normalize(hidden_BEH, dim=-1)
    cosine_B = (unit_BEH.sum(1).square().sum(-1) - unit_BEH.square().sum((1, 2))) / pairs
    spread = hidden_BEH.var(1, correction=0).sum(-1).mean()
    size = hidden_BEH.square().sum(-1).mean()
    row = {
        "expert_cosine": cosine_B.mean().item(),
        "expert_difference": (2 * count**2 / pairs * spread / size).sqrt().item(),
        "expert_share": _share_given_row(hidden_BEH),
    }
    for task, tower in zip(tasks, model.towers, strict=True):
        row[f"logit_share.{task}"] = _share_given_row(tower(hidden_BEH))
    return row


def _share_given_row(values_BEX: Tensor) -> float:
    """Of the variance over rows and experts, the mean variance over experts of a row."""
    total = values_BEX.var((0, 1), correction=0).sum()
    return (values_BEX.var(1, correction=0).mean(0).sum() / total).item()


class GateGradient:
    """Gradients of the gates on fixed rows without dropout: by the router's draws, and dense.

    The experts' outputs are computed once: of a gate's gradient they are constants.
    """

    def __init__(self, module: RecModule, rows: Columns, chunk: int) -> None:
        self.module, self.model, self.rows, self.chunk = module, module.model, rows, chunk
        with torch.no_grad():
            self.x_BD = self.model.encode(rows.request)
            self.hidden_BEH = expert_outputs(self.model, self.x_BD)

    def drawn(self, seed: int) -> list[Tensor]:
        """Per task (C, G), with the weights that the router gives in training."""
        self.model.reseed(seed)
        return self._gradients(lambda routing: routing.weights_BE)

    def dense(self) -> list[Tensor]:
        """Per task (C, G), with all experts weighted by g."""
        return self._gradients(lambda routing: routing.probs_BE)

    def _gradients(self, weights: Callable[[Routing], Any]) -> list[Tensor]:
        self.model.train()
        parts = []
        for start in range(0, len(self.rows) - self.chunk + 1, self.chunk):
            part = slice(start, start + self.chunk)
            loss = self._loss(part, weights)
            gates = [list(router.gate.parameters()) for router in self.model.routers]
            grads = iter(torch.autograd.grad(loss, [p for gate in gates for p in gate]))
            parts.append([torch.cat([next(grads).flatten() for _ in gate]) for gate in gates])
        return [torch.stack(task) for task in zip(*parts, strict=True)]

    def _loss(self, part: slice, weights: Callable[[Routing], Any]) -> Tensor:
        user_B, item_B, labels_BT, *_ = self.rows.take(part)
        routings = [router(self.x_BD[part], user_B) for router in self.model.routers]
        weights_BTE = torch.stack([weights(routing) for routing in routings], 1)
        mixed_TBH = (weights_BTE @ self.hidden_BEH[part]).unbind(1)
        columns = [t(m) for t, m in zip(self.model.towers, mixed_TBH, strict=True)]
        logits_BT = torch.cat(columns, -1)
        if self.model.biases is not None:
            logits_BT = self.model.biases(logits_BT, user_B, item_B)
        return self.module.losses(Output(logits_BT, {"routings": routings}), labels_BT)[0]


def gate_signal(gradient: GateGradient, draws: int, tasks: Sequence[str]) -> Row:
    """Signal and noise of a training step's gate gradient, and how it compares with the dense one.

    `signal`: norm of the mean over draws and chunks. `draw_noise` and `row_noise`: root of the
    trace of the variance over draws of one chunk, and over chunks of the mean draw; `snr`: signal
    over both. `dense`: norm of the mean dense gradient, `dense_snr` against the rows alone,
    `dense_cosine` with the mean draw, `dense_part`: how many dense gradients long the mean draw
    is in their direction. Noise that is left in the means is taken off the squares of norms.
    """
    found = [gradient.drawn(seed) for seed in range(min(draws, 2))]
    if not all(map(torch.equal, found[0], found[-1])):  # else nothing is drawn
        found += map(gradient.drawn, range(2, draws))
    drawn = [torch.stack(task) for task in zip(*found, strict=True)]
    row: Row = {}
    for task, drawn_RCG, dense_CG in zip(tasks, drawn, gradient.dense(), strict=True):
        mean_G, dense_G = drawn_RCG.mean((0, 1)), dense_CG.mean(0)
        dense = signal(dense_CG[None])
        numbers = signal(drawn_RCG) | {
            "dense": dense["signal"],
            "dense_snr": dense["snr"],
            "dense_cosine": torch.cosine_similarity(mean_G, dense_G, dim=0).item(),
            "dense_part": (mean_G @ dense_G / dense_G.square().sum()).item(),
        }
        row |= {f"gate_{name}.{task}": value for name, value in numbers.items()}
    return row


def expert_signal(module: RecModule, rows: Columns, chunk: int) -> Row:
    """Signal over noise of a training step's gradient of the experts' kernels, without dropout.

    From one draw on each chunk: products of different chunks have no noise on average.
    `expert_snr`: root of the squares' ratio, both summed over the experts.
    """
    model, kernel_EDH = module.model, module.model.moe.experts.kernel_EDH
    model.train()
    model.moe.experts.dropout.eval()
    total_EDH, squares, chunks = torch.zeros_like(kernel_EDH), 0.0, len(rows) // chunk
    for number in range(chunks):
        batch = rows.take(slice(number * chunk, (number + 1) * chunk))
        model.reseed(number)
        loss = module.losses(model(batch.request), batch.labels)[0]
        (grad_EDH,) = torch.autograd.grad(loss, [kernel_EDH])
        total_EDH += grad_EDH
        squares += grad_EDH.square().sum().item()
    least = chunks * (chunks - 1) or math.nan
    signal_2 = max((total_EDH.square().sum().item() - squares) / least, 0.0)
    return {"expert_snr": math.sqrt(signal_2 / (squares / chunks - signal_2))}


def signal(drawn_RCG: Tensor) -> dict[str, float]:
    """See `gate_signal`. One draw has no noise of its own."""
    draws, chunks, _ = drawn_RCG.shape
    mean_CG = drawn_RCG.mean(0)
    over_draws = drawn_RCG.var(0).sum(-1).mean().item() if draws > 1 else 0.0
    between = mean_CG.var(0).sum().item() if chunks > 1 else 0.0  # noise of the mean draw included
    over_rows = max(between - over_draws / draws, 0.0)
    least = between if chunks > 1 else over_draws / draws
    size = math.sqrt(max(mean_CG.mean(0).square().sum().item() - least / chunks, 0.0))
    noise = math.sqrt(over_draws + over_rows)
    return {
        "signal": size,
        "draw_noise": math.sqrt(over_draws),
        "row_noise": math.sqrt(over_rows),
        "snr": size / noise if noise else math.inf,
    }
