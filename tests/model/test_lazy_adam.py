"""LazyAdam: leaving rows alone until they are read equals dense Adam."""

from __future__ import annotations

import copy
import csv
import io
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from recsys_moe.config.settings import ConfigError, parse_config
from recsys_moe.model import lazy_adam
from recsys_moe.model.lazy_adam import LazyAdam, MissedSteps
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL

ROWS, DIM, BATCH, NEVER = 300, 3, 12, 20
BETAS = (0.9, 0.999)
Rate = Callable[[int], float]


def constant(step: int) -> float:
    return 1.0


class Pair:
    """The same table under dense float64 Adam and under LazyAdam of any dtype."""

    def __init__(self, dtype: torch.dtype = torch.float64, **options: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.start = torch.rand(ROWS, DIM, generator=generator, dtype=torch.float64) / 10 - 0.05
        self.dense, self.lazy = nn.Parameter(self.start.clone()), self.table(dtype)
        self.adam = torch.optim.Adam([self.dense], fused=True, **options)
        self.ours = LazyAdam([self.lazy], [self.lazy], **options)
        self.lr = self.adam.param_groups[0]["lr"]

    def table(self, dtype: torch.dtype = torch.float64) -> nn.Parameter:
        return nn.Parameter(self.start.to(dtype, copy=True))

    def run(self, steps: range, scale: float = 1.0, rate: Rate = constant) -> None:
        for step in steps:
            index_B, gradient_BD = drawn(step, scale)
            for optimizer in (self.adam, self.ours):
                optimizer.param_groups[0]["lr"] = self.lr * rate(step)
            self.dense.grad = torch.zeros_like(self.dense).index_add_(0, index_B, gradient_BD)
            self.adam.step()
            lazy_step(self.ours, self.lazy, index_B, gradient_BD)

    def distance(self) -> float:
        return (self.lazy.double() - self.dense).abs().max().item()


@lru_cache(maxsize=1000)
def drawn(step: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Heavy-tailed rows, row 0 in every step, the last NEVER in none; repeats are frequent."""
    generator = torch.Generator().manual_seed(step)
    chance_N = torch.arange(1, ROWS + 1).double() ** -1.2
    chance_N[-NEVER:] = 0
    index_B = torch.multinomial(chance_N, BATCH, replacement=True, generator=generator)
    index_B[0] = 0
    pull_B1 = 0.3 * torch.sin(index_B.double())[:, None]
    noise_BD = torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)
    return index_B, scale * (noise_BD + pull_B1)


def lazy_step(optimizer: LazyAdam, table: nn.Parameter, index_B: Tensor, gradient: Tensor) -> None:
    optimizer.catch_up(table, index_B)
    table.grad = torch.sparse_coo_tensor(
        index_B[None], gradient.to(table.dtype), table.shape, check_invariants=True
    )
    optimizer.step()


@pytest.mark.parametrize(("lr", "eps"), [(4e-4, 1e-7), (1e-3, 1e-8)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_after_a_thousand_steps_every_row_is_where_dense_adam_has_it(
    dtype: torch.dtype, lr: float, eps: float
) -> None:
    """Dense Adam in float32 is as far off: 3e-8 sqrt(1000) = 1e-6 from rounding values of 0.7."""
    pair = Pair(dtype, lr=lr, eps=eps)
    pair.run(range(1000))
    assert pair.distance() > 0.01 * lr  # rows are behind, or nothing is tested
    pair.ours.flush()
    assert pair.distance() < (1e-12 if dtype == torch.float64 else 1e-6)
    assert torch.equal(pair.lazy[-NEVER:], pair.start[-NEVER:].to(dtype))


@pytest.mark.parametrize("scale", [1e-6, 1e-7])
def test_gradients_of_the_size_of_eps_are_the_hard_case_and_hold(scale: float) -> None:
    pair = Pair(lr=1e-3, eps=1e-7)
    pair.run(range(300), scale)
    pair.ours.flush()
    assert (pair.dense - pair.start).abs().max() > 0.05
    assert pair.distance() < 3e-8


def test_steps_that_were_missed_count_at_their_own_learning_rate() -> None:
    pair = Pair(lr=1e-3, eps=1e-7)
    pair.run(range(300), rate=lambda step: 1 - step // 50 / 6)
    pair.ours.flush()
    assert pair.distance() < 1e-12


def test_moments_decay_as_in_dense_adam() -> None:
    pair = Pair(lr=1e-3, eps=1e-7)
    pair.run(range(200))
    pair.ours.flush()
    dense, lazy = pair.adam.state[pair.dense], pair.ours.state[pair.lazy]
    for name in ("step", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(lazy[name], dense[name], rtol=1e-9, atol=1e-300)


@settings(max_examples=25)
@given(
    touched=st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=90),
    rates=st.lists(st.sampled_from([0.0, 1e-4, 1e-3, 1e-2]), min_size=1, max_size=4),
    size=st.floats(-9, 1),
    betas=st.sampled_from([BETAS, (0.0, 0.999), (0.5, 0.95), (0.9, 0.99)]),
)
def test_any_pattern_of_rows_and_rates_equals_dense_adam(
    touched: list[set[int]], rates: list[float], size: float, betas: tuple[float, float]
) -> None:
    start = torch.linspace(-0.05, 0.05, 8, dtype=torch.float64).reshape(4, 2)
    dense, table = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    adam = torch.optim.Adam([dense], eps=1e-7, betas=betas)
    ours = LazyAdam([table], [table], lr=1e-3, eps=1e-7, betas=betas)
    for step, rows in enumerate(touched):
        index_B = torch.tensor(sorted(rows), dtype=torch.int64)
        gradient_BD = 10**size * torch.cos(index_B[:, None] + torch.tensor([step, 2.0 * step + 1]))
        adam.param_groups[0]["lr"] = ours.param_groups[0]["lr"] = rates[step % len(rates)]
        dense.grad = torch.zeros_like(dense).index_add_(0, index_B, gradient_BD.double())
        adam.step()
        lazy_step(ours, table, index_B, gradient_BD)
    ours.flush()
    assert (table - dense).abs().max() < 1e-7


@pytest.mark.parametrize(
    ("stopped", "bound"), [(64, 3e-5), (100, 8.1e-6), (500, 1.2e-7), (3000, 6e-9)]
)
def test_completing_a_row_errs_by_no_more_than_the_docstring_says(
    stopped: int, bound: float
) -> None:
    """In units of lr, over all u / eps and gaps; |m| / u <= 7.27 by Cauchy and Schwarz.

    m = (1 - b1) sum b1^i g_i and v = (1 - b2) sum b2^i g_i^2, so that
    m^2 / v <= (1 - b1)^2 / (1 - b2) / (1 - b1^2 / b2) = 0.01 / 0.001 / 0.1892 = 52.9 = 7.27^2.
    """
    missed = MissedSteps(BETAS)
    missed.step = missed.base = stopped
    u_over_eps = np.logspace(-4, 4, 81)
    exact, worst = np.zeros(81), 0.0
    for gap in range(1, 301):
        missed.add(lr=1.0)
        y = ((1 - 0.999 ** (stopped + gap)) / 0.999**gap) ** 0.5
        exact += 0.9**gap / (1 - 0.9 ** (stopped + gap)) * y / (u_over_eps + y)
        weight_2, node_2 = (x[:, 0].numpy() for x in missed.quadrature(torch.tensor([stopped])))
        ours = (weight_2 * node_2 / (u_over_eps[:, None] + node_2)).sum(1)
        worst = max(worst, 7.27 * (u_over_eps * np.abs(ours - exact)).max())
    assert bound / 5 < worst < bound


@pytest.mark.parametrize("stopped", range(0, 200, 7))
def test_a_missed_step_at_rate_zero_leaves_the_one_that_counts(stopped: int) -> None:
    """The variance of y is then 0 but for rounding, and must not become a divisor."""
    missed = MissedSteps(BETAS)
    missed.step = missed.base = stopped
    missed.add(lr=0.0)
    missed.add(lr=1e-3)
    weight_2, node_2 = missed.quadrature(torch.tensor([stopped]))
    after = stopped + 2
    y = ((1 - 0.999**after) / 0.999**2) ** 0.5
    assert weight_2.sum().item() == pytest.approx(1e-3 * 0.9**2 / (1 - 0.9**after), rel=1e-12)
    assert ((weight_2 * node_2).sum() / weight_2.sum()).item() == pytest.approx(y, rel=1e-12)


def test_flushing_twice_or_in_between_changes_nothing_but_rounding() -> None:
    once, often = Pair(lr=1e-3, eps=1e-7), Pair(lr=1e-3, eps=1e-7)
    for start in range(0, 200, 40):
        for pair in (once, often):
            pair.run(range(start, start + 40))
        often.ours.flush()
        flushed = often.lazy.detach().clone()
        often.ours.flush()
        assert torch.equal(often.lazy, flushed)
    once.ours.flush()
    torch.testing.assert_close(once.lazy, often.lazy, rtol=0, atol=1e-12)


def test_the_memory_of_missed_steps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_adam, "PERIOD", 16)
    pair = Pair(lr=1e-3, eps=1e-7)
    pair.run(range(150))
    assert len(pair.ours.state_dict()["lazy"]["terms"]) < 16
    pair.ours.flush()
    assert pair.distance() < 1e-12


@pytest.mark.parametrize("saved_at", [31, 150])
def test_a_saved_and_loaded_state_continues_to_the_same_bits(saved_at: int) -> None:
    """Saved in the middle, rows behind: once in the warm-up and once after it."""
    straight = Pair(torch.float32, lr=1e-3, eps=1e-7)
    straight.run(range(saved_at))
    file = io.BytesIO()
    torch.save({"table": straight.lazy.detach(), "state": straight.ours.state_dict()}, file)
    resumed = Pair(torch.float32, lr=1e-3, eps=1e-7)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed.lazy.data.copy_(saved["table"])
    resumed.ours.load_state_dict(saved["state"])
    for pair in (straight, resumed):
        pair.run(range(saved_at, saved_at + 60))
        pair.ours.flush()
    assert torch.equal(resumed.lazy, straight.lazy)


def test_after_a_flush_dense_adam_and_lazy_adam_read_each_others_state() -> None:
    pair = Pair(lr=1e-3, eps=1e-7)
    pair.run(range(100))
    pair.ours.flush()
    adam_state = copy.deepcopy(pair.adam.state_dict())
    pair.adam.load_state_dict(copy.deepcopy(pair.ours.state_dict()))
    pair.ours.load_state_dict(adam_state)
    pair.run(range(100, 200))
    pair.ours.flush()
    assert pair.distance() < 1e-12


def test_dense_parameters_beside_the_table_are_moved_by_fused_adam() -> None:
    table, kernel, same = (nn.Parameter(torch.ones(4, 2)) for _ in range(3))
    ours = LazyAdam([table, kernel], [table], lr=1e-3)
    adam = torch.optim.Adam([same], lr=1e-3, fused=True)
    for step in range(5):
        kernel.grad = same.grad = torch.full((4, 2), float(step))
        lazy_step(ours, table, torch.tensor([1, 1]), torch.ones(2, 2))
        adam.step()
    assert torch.equal(kernel, same)


def test_reading_without_catching_up_is_an_error_and_not_a_wrong_result() -> None:
    table = nn.Parameter(torch.ones(4, 2))
    ours = LazyAdam([table], [table], lr=1e-3)
    for row in (1, 2):
        lazy_step(ours, table, torch.tensor([row]), torch.ones(1, 2))
    lazy_step(ours, table, torch.tensor([2]), torch.ones(1, 2))
    ours.catch_up = lambda table, index_B: None  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="read before catch_up"):
        lazy_step(ours, table, torch.tensor([1]), torch.ones(1, 2))


def fitted(prepared: Path, out: Path, embeddings: str, **sections: Any) -> list[dict[str, str]]:
    """metrics.csv of a run of two epochs, or of what `sections` says."""
    trainer = {"max_epochs": 2, "batch_size": 64, **sections.pop("trainer", {})}
    optim = {"lr": 1e-2, "embeddings": embeddings, **sections.pop("optim", {})}
    model = {**TINY_MODEL, **sections.pop("model", {})}
    resume = sections.pop("resume", None)
    config = parse_config({"model": model, "trainer": trainer, "optim": optim})
    fit(config, prepared, out, resume=resume)
    return list(csv.DictReader((out / "metrics.csv").read_text().splitlines()))


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"model": {"router": {"name": "thor"}}, "optim": {"schedule": "cosine"}},
        {"trainer": {"precision": "bf16-mixed"}},
    ],
    ids=["moesart", "two passes, cosine", "bf16"],
)
def test_a_fit_with_lazy_tables_reports_what_a_dense_one_does(
    prepared: Path, tmp_path: Path, sections: dict[str, Any]
) -> None:
    dense, lazy = (
        fitted(prepared, tmp_path / name, name, **copy.deepcopy(sections))
        for name in ("dense", "lazy")
    )
    tolerance = 2e-3 if "trainer" in sections else 1e-4  # bfloat16 has 8 bits
    for before, after in zip(dense, lazy, strict=True):
        assert smooth(after) == pytest.approx(smooth(before), rel=tolerance)


def smooth(row: dict[str, str]) -> dict[str, float]:
    """All but what rounding moves by whole examples: a bin's share, an expert's load."""
    steps = ("ece", "max_load", "evaluated_share")
    return {key: float(value) for key, value in row.items() if not key.endswith(steps)}


def test_a_lazy_run_resumes_to_the_same_bits(prepared: Path, tmp_path: Path) -> None:
    straight, halved = tmp_path / "straight", tmp_path / "halved"
    fitted(prepared, straight, "lazy", trainer={"max_epochs": 3})
    fitted(prepared, halved, "lazy", trainer={"max_epochs": 1})
    fitted(prepared, halved, "lazy", trainer={"max_epochs": 3}, resume="auto")
    for name in ("metrics.csv", "model/weights.safetensors"):
        assert (straight / name).read_bytes() == (halved / name).read_bytes()


def kinds(prepared: Path, **sections: Any) -> list[bool]:
    """Which of the tables (60 users, 40 items, each with a row for unseen ids) are lazy."""
    schema = Schema.load(prepared).to_json()
    config = parse_config({"model": TINY_MODEL, **sections}).model_dump(mode="json")
    module = RecModule(config, schema)
    module.configure_optimizers()
    return [module.model.user_embedding.sparse, module.model.item_embedding.sparse]


def test_auto_is_lazy_for_a_table_large_for_its_batch_where_that_is_exact(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys_moe.train.optimizers.LAZY_FROM", 10)
    six = {"trainer": {"batch_size": 6}}  # 61 >= 10 * 6 > 41
    assert kinds(prepared, **six) == [True, False]
    assert kinds(prepared, trainer={"batch_size": 7}) == [False, False]
    for optim in ({"weight_decay": 0.1}, {"betas": [0.9, 0.9]}, {"embeddings": "dense"}):
        assert kinds(prepared, **six, optim=optim) == [False, False]
    assert kinds(prepared, optim={"embeddings": "lazy"}) == [True, True]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"optim": {"weight_decay": 0.1}}, "dense or auto with optim.weight_decay > 0"),
        ({"optim": {"betas": [0.9, 0.9]}}, r"got lazy with optim.betas=\[0.9, 0.9\]"),
        ({"trainer": {"devices": 2}}, "got lazy with trainer.devices .*= 2"),
    ],
)
def test_lazy_is_refused_where_it_would_not_equal_dense(
    sections: dict[str, Any], message: str
) -> None:
    optim = {"embeddings": "lazy", **sections.pop("optim", {})}
    with pytest.raises(ConfigError, match=f"^optim.embeddings must be .*{message}"):
        parse_config({"optim": optim, **sections})
