"""Each mixer on three events by hand, and against loops in double precision with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from recsys_moe.errors import ConfigError
from recsys_moe.model.encoders.mixers import MIXERS, Mixer, lru
from recsys_moe.model.encoders.mixers.attention import YEAR, Attention
from recsys_moe.model.encoders.mixers.decay import POOLS, Decay
from recsys_moe.model.encoders.mixers.gru import GRU
from recsys_moe.model.encoders.mixers.lru import LRU

X_1L1 = torch.tensor([1.0, 2.0, 4.0]).view(1, 3, 1)
IGNORED = torch.zeros(1, 3, dtype=torch.float64)


def zeros(made: nn.Module) -> None:
    for weight in made.parameters():
        nn.init.zeros_(weight)


def mixed(made: Mixer, times: Tensor = IGNORED) -> list[float]:
    found: list[float] = made(X_1L1, times).detach().flatten().tolist()
    return found


def test_decay_takes_means_whose_weights_halve_per_rank_or_per_minute() -> None:
    made = Decay(1, 3)
    zeros(made)
    with torch.no_grad():
        made.log_rate_K[:4] = math.log(math.log(2))
        made.log_rate_K[4:] = math.log(math.log(2) / 60)
        made.into.weight[:POOLS] = 1.0  # values are x, gates silu(1)
        made.into.bias[POOLS:] = 1.0
        made.out.weight[0, 0], made.out.weight[0, 4] = 1.0, 10.0
    times = torch.tensor([[0.0, 60.0, 180.0]], dtype=torch.float64)
    gate = 1 / (1 + math.exp(-1))
    ranks = [1, (2 + 1 / 2) / (1 + 1 / 2), (4 + 2 / 2 + 1 / 4) / (1 + 1 / 2 + 1 / 4)]
    minutes = [1, (2 + 1 / 2) / (1 + 1 / 2), (4 + 2 / 4 + 1 / 8) / (1 + 1 / 4 + 1 / 8)]
    expected = [gate * (r + 10 * m) for r, m in zip(ranks, minutes, strict=True)]
    assert mixed(made, times) == pytest.approx(expected)


def test_lru_turns_and_halves_what_it_keeps() -> None:
    made = LRU(1, 3)
    zeros(made)
    with torch.no_grad():
        made.log_decay_H.fill_(math.log(math.log(2)))  # lambda = i / 2
        made.log_angle_H.fill_(math.log(math.pi / 2))
        made.into.weight[0] = 1.0  # the real part of the first of two units is x
        made.out.weight[0, 0], made.out.weight[0, 2] = 1.0, 10.0  # Re + 10 Im of that unit
    # h = 1; i/2 + 2; i/2 (2 + i/2) + 4 = 3.75 + i
    assert mixed(made) == pytest.approx([1, 2 + 10 * 0.5, 3.75 + 10 * 1])


def test_gru_with_gates_at_a_half_keeps_half_of_what_it_had() -> None:
    made = GRU(1, 3)
    zeros(made)
    with torch.no_grad():
        made.gru.weight_ih_l0[2] = 1.0  # the candidate is tanh(x); both gates are sigmoid(0)
    one = math.tanh(1) / 2
    two = math.tanh(2) / 2 + one / 2
    assert mixed(made) == pytest.approx([one, two, math.tanh(4) / 2 + two / 2])


def test_attention_adds_biases_of_rank_and_of_the_gap_in_time() -> None:
    made = Attention(1, 3, heads=1)
    zeros(made)
    with torch.no_grad():
        made.into.weight[2] = made.out.weight[:] = 1.0  # values are x, no query has a key
        made.rank_HL[0, 1] = math.log(2)  # the event before counts twice
        made.gap_H2[0] = torch.tensor([math.log(3) - 0.5, 0.5])  # a year apart: three times
    times = torch.tensor([[0.0, 0.0, YEAR]], dtype=torch.float64)
    expected = [1, (2 + 2 * 1) / (1 + 2), (4 + 2 * 3 * 2 + 3 * 1) / (1 + 2 * 3 + 3)]
    assert mixed(made, times) == pytest.approx(expected)


def test_attention_refuses_a_width_that_its_heads_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="multiple of 2 heads, got 7"):
        Attention(7, 3)


def decay_loops(made: Decay, x_LD: Tensor, time_L: Tensor) -> Tensor:
    outputs, rates = [], made.log_rate_K.exp()
    for p in range(len(x_LD)):
        pools = []
        gate = nn.functional.silu(made.into(x_LD[p]).view(2, POOLS, -1)[1])
        for k in range(POOLS):
            apart = [p - q if k < POOLS // 2 else time_L[p] - time_L[q] for q in range(p + 1)]
            weights = [torch.exp(-rates[k] * distance) for distance in apart]
            values = [made.into(x_LD[q]).view(2, POOLS, -1)[0, k] for q in range(p + 1)]
            total = torch.stack([w * v for w, v in zip(weights, values, strict=True)]).sum(0)
            pools.append(gate[k] * total / torch.stack(weights).sum())
        outputs.append(made.out(torch.cat(pools)))
    return torch.stack(outputs)


def lru_loops(made: LRU, x_LD: Tensor, time_L: Tensor) -> Tensor:
    factor = torch.exp(torch.complex(-made.log_decay_H.exp(), made.log_angle_H.exp()))
    hidden, outputs = torch.zeros_like(factor), []
    for x_D in x_LD:
        real, imag = made.into(x_D).chunk(2)
        hidden = factor * hidden + made.log_scale_H.exp() * torch.complex(real, imag)
        outputs.append(made.out(torch.cat([hidden.real, hidden.imag])))
    return torch.stack(outputs)


def gru_loops(made: GRU, x_LD: Tensor, time_L: Tensor) -> Tensor:
    gru, hidden, outputs = made.gru, torch.zeros_like(x_LD[0]), []
    for x_D in x_LD:
        new = (gru.weight_ih_l0 @ x_D + gru.bias_ih_l0).chunk(3)
        old = (gru.weight_hh_l0 @ hidden + gru.bias_hh_l0).chunk(3)
        reset, keep = torch.sigmoid(new[0] + old[0]), torch.sigmoid(new[1] + old[1])
        hidden = (1 - keep) * torch.tanh(new[2] + reset * old[2]) + keep * hidden
        outputs.append(hidden)
    return torch.stack(outputs)


def attention_loops(made: Attention, x_LD: Tensor, time_L: Tensor) -> Tensor:
    parts = [made.into(x_D).view(3, made.heads, -1) for x_D in x_LD]
    outputs = []
    for p in range(len(x_LD)):
        seen, heads = range(max(0, p + 1 - made.length), p + 1), []
        for h in range(made.heads):
            logits = []
            for q in seen:
                gap = torch.log1p(time_L[p] - time_L[q]) / math.log1p(YEAR)
                product = parts[p][0, h] @ parts[q][1, h] / math.sqrt(parts[p].shape[-1])
                bias = made.rank_HL[h, p - q] + made.gap_H2[h, 0] * gap + made.gap_H2[h, 1] * gap**2
                logits.append(product + bias)
            weight_Q = torch.stack(logits).softmax(0)
            heads.append(sum(weight_Q[n] * parts[q][2, h] for n, q in enumerate(seen)))
        outputs.append(made.out(torch.cat(heads)))
    return torch.stack(outputs)


LOOPS: dict[str, Callable[..., Tensor]] = {
    "decay": decay_loops,
    "lru": lru_loops,
    "gru": gru_loops,
    "attention": attention_loops,
}


@pytest.mark.parametrize("length", [1, 7, 2 * lru.CHUNK + 1])
@pytest.mark.parametrize("name", MIXERS)
def test_values_and_gradients_are_those_of_loops(name: str, length: int) -> None:
    torch.manual_seed(length)
    made = MIXERS[name](4, 20).double()
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.5)
    x_MLD = torch.randn(2, length, 4, dtype=torch.float64, requires_grad=True)
    time_ML = torch.randint(4, (2, length)).double().cumsum(1)
    found = made(x_MLD, time_ML)
    expected = torch.stack(
        [LOOPS[name](made, *window) for window in zip(x_MLD, time_ML, strict=True)]
    )
    torch.testing.assert_close(found, expected)
    weight_MLD = torch.linspace(-1, 1, found.numel()).view_as(found)
    wanted = [x_MLD, *made.parameters()]
    grads = torch.autograd.grad((found * weight_MLD).sum(), wanted, allow_unused=True)
    others = torch.autograd.grad((expected * weight_MLD).sum(), wanted, allow_unused=True)
    for grad, other, weight in zip(grads, others, wanted, strict=True):
        grad, other = (torch.zeros_like(weight) if g is None else g for g in (grad, other))
        torch.testing.assert_close(grad, other, rtol=1e-6, atol=1e-9)
