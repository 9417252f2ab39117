"""What every mixer keeps: causal, a step is a place of forward, a bounded state, exportable."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.model.encoders.mixers import MIXERS, Mixer

DIM, LENGTH = 6, 20
NAMES = pytest.mark.parametrize("name", MIXERS)
SHAPES = {
    "windows": st.integers(1, 3),
    "length": st.integers(1, LENGTH + 20),
    "seed": st.integers(0, 99),
}


def mixer(name: str, seed: int = 0) -> Mixer:
    """With weights that all matter, also those that begin with 0."""
    torch.manual_seed(seed)
    made = MIXERS[name](DIM, LENGTH)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return made.eval()


def events(windows: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and times, some of which are equal, hours or a year apart."""
    random = torch.Generator().manual_seed(seed)
    x_MLD = torch.randn(windows, length, DIM, generator=random)
    gap_ML = torch.tensor([0.0, 0.0, 3.0, 4e3, 3e7], dtype=torch.float64)[
        torch.randint(5, (windows, length), generator=random)
    ]
    return x_MLD, 1e9 + gap_ML.cumsum(1)


@NAMES
@given(**SHAPES)
def test_steps_give_what_forward_gives(name: str, windows: int, length: int, seed: int) -> None:
    made, (x_MLD, time_ML) = mixer(name, seed), events(windows, length, seed)
    state, stepped = made.start(windows), []
    with torch.no_grad():
        for place in range(length):
            y_MD, state = made.step(x_MLD[:, place], time_ML[:, place], state)
            stepped.append(y_MD)
        whole_MLD = made(x_MLD, time_ML)
    torch.testing.assert_close(torch.stack(stepped, 1), whole_MLD, rtol=1e-5, atol=1e-5)


@NAMES
@settings(max_examples=20)
@given(**SHAPES)
def test_read_gives_what_forward_gives_and_the_state_after_some_steps(
    name: str, windows: int, length: int, seed: int
) -> None:
    """Of windows of unequal length, behind which something else stands."""
    made, (x_MLD, time_ML) = mixer(name, seed), events(windows, length, seed)
    count_M = torch.randint(
        1, length + 1, (windows,), generator=torch.Generator().manual_seed(seed)
    )
    with torch.no_grad():
        whole_MLD, found = made.read(x_MLD, time_ML, count_M)
        assert torch.equal(whole_MLD, made(x_MLD, time_ML))
        for row, count in enumerate(count_M.tolist()):
            state = made.start(1)
            for place in range(count):
                state = made.step(x_MLD[[row], place], time_ML[[row], place], state)[1]
            for mine, other in zip(found, state, strict=True):
                torch.testing.assert_close(mine[row], other[0], rtol=1e-5, atol=1e-5)


@NAMES
@given(**SHAPES, place=st.integers(0, LENGTH))
def test_what_stands_behind_a_place_changes_no_bit_of_it(
    name: str, windows: int, length: int, seed: int, place: int
) -> None:
    made, (x_MLD, time_ML) = mixer(name, seed), events(windows, length, seed)
    other_MLD, other_ML = x_MLD.clone(), time_ML.clone()
    other_MLD[:, place:], other_ML[:, place:] = 1e3, 0.0
    found = made(other_MLD, other_ML)[:, :place]
    assert torch.equal(found, made(x_MLD, time_ML)[:, :place])


@NAMES
def test_gradients_of_a_place_ignore_what_stands_behind_it(name: str) -> None:
    made, (x_MLD, time_ML) = mixer(name), events(2, 12)
    x_MLD.requires_grad_()
    made(x_MLD, time_ML)[:, :5].square().sum().backward()
    assert x_MLD.grad is not None and x_MLD.grad[:, :5].abs().amin() > 0
    assert not x_MLD.grad[:, 5:].any()


@NAMES
def test_windows_do_not_see_each_other_and_a_state_has_their_axis_first(name: str) -> None:
    made, (x_MLD, time_ML) = mixer(name), events(3, 4)
    state = made.start(3)
    for place in range(4):
        y_MD, state = made.step(x_MLD[:, place], time_ML[:, place], state)
    alone = made.start(1)
    for place in range(4):
        y_1D, alone = made.step(x_MLD[1:2, place], time_ML[1:2, place], alone)
    torch.testing.assert_close(y_1D, y_MD[1:2], rtol=1e-5, atol=1e-6)
    for whole, part in zip(state, alone, strict=True):
        torch.testing.assert_close(part, whole[1:2], rtol=1e-5, atol=1e-6)


@NAMES
def test_a_state_stays_as_large_as_it_began(name: str) -> None:
    made, (x_MLD, time_ML) = mixer(name), events(1, 3 * LENGTH)
    state = start = made.start(1)
    for place in range(3 * LENGTH):
        _, state = made.step(x_MLD[:, place], time_ML[:, place], state)
    assert [(part.shape, part.dtype) for part in state] == [(p.shape, p.dtype) for p in start]


@NAMES
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_mixed_precision_is_near_and_leaves_states_in_full_precision(
    name: str, half: torch.dtype
) -> None:
    made, (x_MLD, time_ML) = mixer(name), events(2, 5)
    start = state = made.start(2)
    with torch.autocast("cpu", half):
        found_MLD = made(x_MLD, time_ML)
        for place in range(5):
            y_MD, state = made.step(x_MLD[:, place], time_ML[:, place], state)
    torch.testing.assert_close(found_MLD.float(), made(x_MLD, time_ML), rtol=0.05, atol=0.05)
    torch.testing.assert_close(y_MD.float(), found_MLD[:, -1].float(), rtol=0.05, atol=0.05)
    assert [part.dtype for part in state] == [part.dtype for part in start]


@pytest.mark.slow
@NAMES
def test_forward_and_step_are_exported_for_any_number_of_windows(name: str) -> None:
    made, windows = mixer(name), torch.export.Dim("windows", min=1, max=1024)

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.made = made

        def forward(self, x_MD: Tensor, time_M: Tensor, state: tuple[Tensor, ...]) -> object:
            return made.step(x_MD, time_M, state)

    x_MLD, time_ML = events(5, LENGTH)
    several, axis = events(3, LENGTH, seed=1), {0: windows}
    whole = torch.export.export(made, several, dynamic_shapes=(axis, axis)).module()
    torch.testing.assert_close(whole(x_MLD, time_ML), made(x_MLD, time_ML))

    state = made.start(3)
    one = (several[0][:, 0], several[1][:, 0], state)
    shapes = (axis, axis, tuple(axis for _ in state))
    step = torch.export.export(Step(), one, dynamic_shapes=shapes).module()
    asked = (x_MLD[:, 0], time_ML[:, 0], made.start(5))
    torch.testing.assert_close(step(*asked), made.step(*asked))


@pytest.mark.slow
def test_attention_is_exported_as_onnx() -> None:
    made, (x_MLD, time_ML) = mixer("attention"), events(3, LENGTH)
    axis = {0: torch.export.Dim.DYNAMIC}
    graph = torch.onnx.export(
        made, (x_MLD, time_ML), dynamo=True, dynamic_shapes=(axis, axis), verbose=False
    )
    assert graph is not None
    found_MLD = graph(x_MLD[:2], time_ML[:2])[0]
    torch.testing.assert_close(found_MLD, made(x_MLD[:2], time_ML[:2]), rtol=1e-5, atol=1e-5)


@NAMES
@settings(max_examples=20)
@given(**SHAPES, more=st.integers(1, 20))
def test_further_events_after_a_state_have_what_forward_has(
    name: str, windows: int, length: int, seed: int, more: int
) -> None:
    made, (x_MLD, time_ML) = mixer(name, seed), events(windows, length + more, seed)
    with torch.no_grad():
        whole_MLD = made(x_MLD, time_ML)
        count_M = torch.full((windows,), length)
        state = made.read(x_MLD[:, :length], time_ML[:, :length], count_M)[1]
        further = x_MLD[:, length:], time_ML[:, length:], state
        count_M = torch.randint(more, (windows,)) + 1
        last_MD = made.prepared().last(*further, count_M)
        found_MLD = made.prepared().extend(*further)
    torch.testing.assert_close(found_MLD, whole_MLD[:, length:], rtol=1e-5, atol=1e-5)
    expected_MD = whole_MLD[torch.arange(windows), length + count_M - 1]
    torch.testing.assert_close(last_MD, expected_MD, rtol=1e-5, atol=1e-5)
