"""Adam that leaves the rows of an embedding table alone until they are read, and equals Adam.

Adam (Kingma and Ba 2015, algorithm 1, in PyTorch's form) moves every row in every step, read or
not: a row without a gradient coasts on its moments. Let a row be complete up to step s, with
moments m and v, and get no gradient in steps s+1..T. With n = T - s and u = sqrt(v), dense Adam
leaves m b1^n, v b2^n and

    p - m sum_{j=1..n} a_j y_j / (u + eps y_j),
    a_j = lr_{s+j} b1^j / (1 - b1^(s+j)),    y_j = sqrt((1 - b2^(s+j)) / b2^j).

The sum is one function of u for all rows with the same s. It is the integral of y / (u + eps y)
over the measure with mass a_j at y_j, and is replaced by the Gauss quadrature of that measure with
two nodes: exact for n <= 2 and in the limits u >> eps (linear in y) and u << eps (constant);
otherwise wrong by the fourth power of the relative spread of y over about 1 / (1 - b1) steps. The
nodes follow from sum_j a_j (y_j - y_1)^q for q = 0..3. Each step adds one term per s, with the
learning rate of that step, so a schedule needs no care.

y spreads widely in the first steps (y_j ~ sqrt(s + j)). Until step 6.4 / (1 - b1) all rows that
ever had a gradient are therefore completed every second step, where the quadrature is exact.
After that, for betas (0.9, 0.999) and any sequence of gradients, completing a row once errs by at
most 3e-5 lr at step 64, 8e-6 lr at step 100 and 6e-9 lr from step 3,000 on (`tests/` measure it).

Axes: N rows of a table, U rows read in a step, S steps since all rows were complete, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

PERIOD = 1024
"""All rows are completed at least every so many steps, which bounds the memory of missed steps."""
CHUNK = 4096
"""Rows completed at once: the temporaries stay in the cache."""
ROUNDING, TINY = 1e-12, 1e-300
MOMENTS = ("exp_avg", "exp_avg_sq")


def fits(betas: tuple[float, float]) -> bool:
    """Whether y varies little enough over the memory of m: by at most about 5%."""
    return 1 - betas[1] <= 0.11 * (1 - betas[0])


class MissedSteps:
    """Of the steps since `base`: how far they move a row, given the step at which it stopped.

    `terms_S5[s - base]` is y_1 and sum_j a_j (y_j - y_1)^q, q = 0..3, over steps s+1..`step`,
    float64.
    """

    def __init__(self, betas: tuple[float, float]) -> None:
        self.betas = betas
        self.step = self.base = 0
        gap_S = torch.arange(1, PERIOD + 1, dtype=torch.float64)
        self.decay_S, self.stretch_S = betas[0] ** gap_S, betas[1] ** (-gap_S / 2)
        self.terms_S5 = gap_S.new_empty(PERIOD + 1, 5)
        self.forget()

    def forget(self) -> None:
        """All rows are complete."""
        self.base = self.step
        self.terms_S5.zero_()
        self.terms_S5[:, 0] = 1

    def add(self, lr: float) -> None:
        """One more step: a term for every step at which a row may have stopped."""
        self.step += 1
        gaps = self.step - self.base
        left_m, left_v = (1 - beta**self.step for beta in self.betas)
        a_S = lr / left_m * self.decay_S[:gaps].flip(0)
        y_S = math.sqrt(left_v) * self.stretch_S[:gaps].flip(0)
        self.terms_S5[gaps - 1, 0] = y_S[-1]
        d_S = y_S - self.terms_S5[:gaps, 0]
        self.terms_S5[:gaps, 1:] += torch.stack([a_S, a_S * d_S, a_S * d_S**2, a_S * d_S**3], 1)

    def quadrature(self, last_U: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and nodes, both (2, U) float64, for rows complete up to steps `last_U`.

        A row that never had a gradient (0) gets those of any other: its moments are 0.
        """
        place_U = (last_U.long() - self.base).clamp(min=0)
        first_U, mass_U, *raw = self.terms_S5[place_U].unbind(1)
        mean_U, square_U, cube_U = (moment_U / mass_U.clamp(min=TINY) for moment_U in raw)
        # One step has no variance; where rounding leaves some, it must not meet a smaller divisor.
        variance_U = (square_U - mean_U**2).maximum(ROUNDING * square_U).clamp(min=TINY)
        half_U = (cube_U - 3 * mean_U * variance_U - mean_U**3) / (2 * variance_U)
        root_U = (half_U**2 + variance_U).sqrt()
        upper_U = (root_U - half_U) / (2 * root_U)
        offset_2U = torch.stack([half_U + root_U, half_U - root_U])
        weight_2U = mass_U * torch.stack([upper_U, 1 - upper_U])
        return weight_2U, first_U + mean_U + offset_2U

    def state_dict(self) -> dict[str, Any]:
        terms_S5 = self.terms_S5[: self.step - self.base].clone()
        return {"step": self.step, "base": self.base, "terms": terms_S5}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.forget()
        self.base = state["base"]
        self.terms_S5[: len(state["terms"])] = state["terms"]


class LazyAdam(torch.optim.Adam):
    """Adam(fused=True), but the rows of `tables` move when they are read.

    `tables`: parameters (N, D) among `params` whose gradients are sparse (nn.Embedding with
    sparse=True). Before a forward pass `catch_up` the rows that it reads; before the whole table
    is used, `flush`. Both change nothing that a later step depends on, beyond rounding.

    After `flush` the state is Adam's own, key by key: either optimizer reads the other's.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        tables: Sequence[Tensor],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        if not fits(betas):
            raise ValueError(f"1 - betas[1] must be at most 0.11 (1 - betas[0]), got {betas}")
        super().__init__(params, lr=lr, betas=betas, eps=eps, fused=True)
        self._step_supports_amp_scaling = False  # so that a GradScaler unscales before `step`
        self.warm_up = math.ceil(6.4 / (1 - betas[0]))
        self.missed = MissedSteps(betas)
        # Per table (N,): the step up to which a row is complete; 0 before its first gradient.
        self.last = {table: table.new_zeros(len(table), dtype=torch.int32) for table in tables}
        for table in tables:
            moments = {name: torch.zeros_like(table, requires_grad=False) for name in MOMENTS}
            self.state[table] = {"step": table.new_zeros((), dtype=torch.float32), **moments}

    @torch.no_grad()
    def catch_up(self, table: Tensor, index_B: Tensor) -> None:
        """Complete the rows at `index_B`, in any order and number, up to the last step."""
        self._complete(table, index_B.unique().long())

    @torch.no_grad()
    def flush(self) -> None:
        """Complete every row of every table."""
        for table, last_N in self.last.items():
            late_N = (last_N > 0) & (last_N < self.missed.step)
            for row_U in late_N.nonzero()[:, 0].split(CHUNK):
                self._complete(table, row_U)
        self.missed.forget()

    def _complete(self, table: Tensor, row_U: Tensor) -> None:
        """Apply to distinct rows the steps that they missed."""
        settings = self.param_groups[0]
        last_U = self.last[table][row_U].cpu()
        (weight, other), (node, far) = (
            pair_2U[..., None].to(table) for pair_2U in self.missed.quadrature(last_U)
        )
        gap_U1 = (self.missed.step - last_U.double())[:, None]
        decay_m, decay_v = ((beta**gap_U1).to(table) for beta in settings["betas"])
        p_UD, m_UD, v_UD = rows = [x_ND.index_select(0, row_U) for x_ND in self._parts(table)]
        u_UD, eps = v_UD.sqrt(), settings["eps"]
        move_UD = weight * node / (u_UD + eps * node) + other * far / (u_UD + eps * far)
        p_UD.addcmul_(m_UD, move_UD, value=-1)
        m_UD.mul_(decay_m)
        v_UD.mul_(decay_v)
        self._store(table, row_U, rows)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of Adam. Raises RuntimeError when a row with a gradient was not complete."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = {table: table.grad for table in self.last}
        for table in gradients:
            table.grad = None  # Adam skips a parameter without a gradient
        super().step()
        self.missed.add(float(self.param_groups[0]["lr"]))
        for table, gradient in gradients.items():
            table.grad = gradient
            self.state[table]["step"].fill_(self.missed.step)
            if gradient is not None:
                self._update(table, gradient.coalesce())
        waited = self.missed.step - self.missed.base
        if waited == (2 if self.missed.step <= self.warm_up else PERIOD):
            self.flush()
        return loss

    def _update(self, table: Tensor, gradient: Tensor) -> None:
        """Adam on the rows of a coalesced sparse gradient."""
        row_U, g_UD = gradient.indices()[0], gradient.values()
        step, last_U = self.missed.step, self.last[table][row_U]
        if ((last_U > 0) & (last_U < step - 1)).any():
            raise RuntimeError("rows were read before catch_up: their gradients are of old values")
        settings = self.param_groups[0]
        (b1, b2), lr = settings["betas"], settings["lr"]
        p_UD, m_UD, v_UD = rows = [x_ND.index_select(0, row_U) for x_ND in self._parts(table)]
        m_UD.lerp_(g_UD, 1 - b1)
        v_UD.mul_(b2).addcmul_(g_UD, g_UD, value=1 - b2)
        scale_UD = v_UD.sqrt().div_(math.sqrt(1 - b2**step)).add_(settings["eps"])
        p_UD.addcdiv_(m_UD, scale_UD, value=-float(lr) / (1 - b1**step))
        self._store(table, row_U, rows)

    def _parts(self, table: Tensor) -> list[Tensor]:
        """Values and both moments of a table, each (N, D)."""
        return [table, *(self.state[table][name] for name in MOMENTS)]

    def _store(self, table: Tensor, row_U: Tensor, rows: list[Tensor]) -> None:
        for x_ND, x_UD in zip(self._parts(table), rows, strict=True):
            x_ND[row_U] = x_UD
        self.last[table].index_fill_(0, row_U, self.missed.step)

    def state_dict(self) -> dict[str, Any]:
        """Adam's, and under `lazy` what is pending; saving completes nothing."""
        last = [last_N.clone() for last_N in self.last.values()]
        return {**super().state_dict(), "lazy": {**self.missed.state_dict(), "last": last}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """A state of this class, or one of Adam (then every row is complete)."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lazy"})
        steps = [int(self.state[table]["step"]) for table in self.last]
        full = [torch.full_like(n, step) for n, step in zip(self.last.values(), steps, strict=True)]
        nothing = {"step": steps[0], "base": steps[0], "terms": torch.empty(0, 5)}
        pending = state_dict.get("lazy", nothing)
        self.missed.load_state_dict(pending)
        for last_N, saved_N in zip(self.last.values(), pending.get("last", full), strict=True):
            last_N.copy_(saved_N)
