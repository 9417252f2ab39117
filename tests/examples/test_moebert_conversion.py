"""Feed-forward blocks of a trained encoder become experts: which units, and with what effect."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn import functional

from examples.moebert.convert import MixedLayer, convert, deal
from examples.moebert.distance import dense, sizes
from examples.moebert.encoder import Encoder, Sizes, Text
from examples.moebert.importance import importance
from examples.moebert.losses import hidden_distance, symmetric_kl, task_loss
from examples.moebert.settings import student
from recsys_moe.errors import ConfigError
from recsys_moe.routers import ROUTERS
from tests.examples.made_texts import SIZES, small_encoder, texts

EVEN = {"experts": 2, "share": 4, "units": 8}  # 4 + 2 x 4 = 12: no unit is lost
TWO_PASSES = {"thor"}
NEEDS_EXPERTS = {"default_moe"}


def even_scores(encoder: Encoder) -> list[torch.Tensor]:
    return [torch.arange(12.0) for _ in encoder.layers]


def test_units_are_dealt_as_in_the_golden_example() -> None:
    """Two shared; the rest 7, 0, 1, 3, 6, 4 in turn: 7, 1, 6 and 0, 3, 4; two of each stay."""
    dealt = deal([5, 2, 7, 0, 1, 3, 6, 4], experts=2, share=2, units=4)
    assert dealt == [[5, 2, 7, 1], [5, 2, 0, 3]]


def test_1536_of_berts_3072_units_are_kept() -> None:
    """512 shared and 4 x 256 of the experts' own."""
    wide = Sizes(40, hidden_size=768, num_hidden_layers=1, num_attention_heads=12)
    teacher = Encoder(dataclasses.replace(wide, intermediate_size=3072))
    scores = [torch.randperm(3072).float()]
    chosen = {"name": "topk", "k": 2}
    found = sizes(student("titles", router="topk"), teacher)
    assert found == {"experts": 4, "units": 768, "share": 512}
    (layer,) = convert(teacher, scores, chosen, **found).layers
    assert isinstance(layer, MixedLayer)
    assert [expert.into.out_features for expert in layer.mixture.experts] == [768] * 4
    rows = torch.cat([expert.into.weight for expert in layer.mixture.experts])
    assert len(rows.sum(1).unique()) == 1536
    shared = scores[0].argsort(descending=True)[:512]
    for expert in layer.mixture.experts:
        theirs = teacher.layers[0].output.dense.weight[:, shared]
        torch.testing.assert_close(expert.out.weight[:, :512], theirs)


@pytest.mark.parametrize(
    ("experts", "share", "units", "said"),
    [
        (2, 5, 4, "--share .*got 5"),
        (3, 2, 5, "must .*got 3 x 3.*--units"),
    ],
)
def test_units_that_there_are_not_are_refused(
    experts: int, share: int, units: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        deal(list(range(8)), experts, share, units)


def naive_importance(encoder: Encoder, text: Text, labels_BT: torch.Tensor) -> list[torch.Tensor]:
    """The definition, a text at a time, from whole gradients of the matrices."""
    scores = [torch.zeros(SIZES.intermediate_size) for _ in encoder.layers]
    for row in range(len(labels_BT)):
        encoder.zero_grad()
        one = Text(*(part[row : row + 1] for part in text))
        functional.cross_entropy(encoder(one).logits[0], labels_BT[row]).backward()
        for score, layer in zip(scores, encoder.layers, strict=True):
            into, out = layer.intermediate["dense"].weight, layer.output.dense.weight
            score += ((into * into.grad).sum(1) + (out * out.grad).sum(0)).abs().detach()
    return scores


def test_importance_is_that_of_its_definition() -> None:
    encoder, (text, labels_BT) = small_encoder(), texts()
    halves = [(Text(*(p[rows] for p in text)), labels_BT[rows]) for rows in ([0, 1, 2], [3, 4])]
    for fast, slow in zip(
        importance(encoder, halves), naive_importance(encoder, text, labels_BT), strict=True
    ):
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-6)
        assert (fast > 0).all()


@pytest.mark.parametrize("name", ["topk", "hash", "moesart", "softmax"])
def test_experts_that_have_all_units_are_the_teacher_itself(name: str) -> None:
    """Weights sum to 1 and every expert computes the same: inference equal to the dense block."""
    teacher, (text, _) = small_encoder(), texts()
    chosen: dict[str, Any] = {"name": name, **({"k": 2} if name in ("topk", "moesart") else {})}
    scores = even_scores(teacher)
    whole = convert(teacher, scores, chosen, experts=4, share=12, units=12).eval()
    seen, taught = whole(text), teacher(text)
    torch.testing.assert_close(seen.logits[0], taught.logits[0])
    for own, theirs in zip(seen.hidden, taught.hidden, strict=True):
        torch.testing.assert_close(own[text.mask_BL], theirs[text.mask_BL])


@pytest.mark.parametrize("name", sorted(set(ROUTERS) - TWO_PASSES - NEEDS_EXPERTS))
def test_every_router_of_the_table_routes_tokens_and_trains(name: str) -> None:
    teacher, (text, labels_BT) = small_encoder(), texts()
    chosen: dict[str, Any] = {"name": name}
    if "k" in ROUTERS[name].Config.model_fields:
        chosen["k"] = 2
    model = convert(teacher, even_scores(teacher), chosen, experts=4, share=4, units=6).train()
    seen = model(text)
    assert len(seen.routings[0].weights_BE) == text.mask_BL.sum()  # padding is not routed
    penalty = sum(
        layer.mixture.auxiliary_loss([routing])
        for layer, routing in zip(model.layers, seen.routings, strict=True)
    )
    (task_loss(seen.logits, labels_BT) + penalty).backward()
    for layer in model.layers:
        assert all(p.grad is not None for p in layer.mixture.experts.parameters())


@pytest.mark.parametrize(
    ("name", "said"),
    [("thor", "must .*got thor"), ("default_moe", "needs Experts")],
)
def test_routers_that_cannot_be_are_refused(name: str, said: str) -> None:
    teacher = small_encoder()
    with pytest.raises(ConfigError, match=said):
        convert(teacher, even_scores(teacher), {"name": name}, **EVEN)


def test_hash_sends_a_token_to_the_same_expert_wherever_it_stands() -> None:
    teacher, (text, _) = small_encoder(), texts(rows=40)
    model = convert(teacher, even_scores(teacher), {"name": "hash"}, **EVEN)
    tokens_N, selected_NE = text.ids_BL[text.mask_BL], model(text).routings[0].selected_BE
    for token in tokens_N.unique():
        assert len(selected_NE[tokens_N == token].unique(dim=0)) == 1
    tables = [layer.mixture.routers[0].expert_U for layer in model.layers]
    assert not tables[0].equal(tables[1])  # each layer has its own


def test_padding_changes_nothing() -> None:
    teacher, (text, _) = small_encoder(), texts()
    model = convert(teacher, even_scores(teacher), {"name": "topk", "k": 2}, **EVEN).eval()
    for encoder in (teacher, model):
        longer = Text(*(functional.pad(part, (0, 4)) for part in text))
        torch.testing.assert_close(encoder(longer).logits[0], encoder(text).logits[0])


def test_all_experts_at_once_have_the_same_weights_and_the_routers_probabilities() -> None:
    teacher, (text, _) = small_encoder(), texts()
    settings = student("titles", router="moesart", experts=2, share=4, units=8)
    chosen = {"name": "moesart", "k": 2, "temperature": 1.0}
    scores = even_scores(teacher)
    sparse = convert(teacher, scores, chosen, **sizes(settings, teacher)).eval()
    every = dense(sparse, teacher, scores, settings, chosen)
    assert every is not None
    routing = every.eval()(text).routings[0]
    assert routing.probs_BE is not None
    torch.testing.assert_close(routing.weights_BE, routing.probs_BE)
    assert dense(sparse, teacher, scores, student("titles", router="vmoe"), chosen) is None


def test_the_losses_are_those_of_the_paper() -> None:
    """p = (3/4, 1/4), q = (1/2, 1/2): (1/4 - -1/4 ...) = 1/4 ln(3/2) - 1/4 ln(1/2) = ln 3 / 4."""
    p_BC, q_BC = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.5, 0.5]]).log()
    expected = torch.tensor(3.0).log() / 4
    torch.testing.assert_close(symmetric_kl([p_BC], [q_BC]), expected)
    torch.testing.assert_close(symmetric_kl([p_BC, q_BC], [q_BC, q_BC]), expected / 2)  # two ends
    states = [torch.zeros(1, 2, 2), torch.ones(1, 2, 2)]
    other = [torch.full((1, 2, 2), 2.0), torch.full((1, 2, 2), 2.0)]
    mask_BL = torch.tensor([[True, False]])
    other[0][0, 1] = 99  # padding counts nothing: 2^2 + 1^2
    assert hidden_distance(states, other, mask_BL) == 5
