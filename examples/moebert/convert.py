"""A trained encoder's feed-forward blocks become mixtures of experts with a shared part.

Axes: B batch, L positions, N tokens of texts, D width, F units of a block, E experts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from examples.moebert.encoder import Encoder, Layer, Text
from recsys_moe import MoE, Routing, router
from recsys_moe.errors import ConfigError


def deal(ranking: Sequence[int], experts: int, share: int, units: int) -> list[list[int]]:
    """The `units` of each expert, of the F units in `ranking`, most important first.

    All experts get the first `share`; the others are dealt in turn, and an expert keeps the first
    of its own. Raises ConfigError for too few units.
    """
    own = units - share
    if own < 0 or share < 0:
        raise ConfigError(f"--share must be in 0..--units={units}, got {share}")
    if share + own * experts > len(ranking):
        raise ConfigError(
            f"--experts times their own units must be at most {len(ranking) - share} with "
            f"{share} shared ones, got {experts} x {own}; lower --units"
        )
    rest = ranking[share:]
    return [[*ranking[:share], *rest[expert::experts][:own]] for expert in range(experts)]


class Expert(nn.Module):
    """A narrower feed-forward block with its residual and LayerNorm: (R, D) -> (R, D)."""

    def __init__(self, layer: Layer, units: Sequence[int]) -> None:
        """A copy of these units of `layer`."""
        super().__init__()
        into, out = layer.intermediate["dense"], layer.output.dense
        assert isinstance(into, nn.Linear)
        self.into = nn.Linear(into.in_features, len(units))
        self.out = nn.Linear(len(units), out.out_features)
        chosen = list(units)
        self.into.weight.data = into.weight.data[chosen].clone()
        self.into.bias.data = into.bias.data[chosen].clone()
        self.out.weight.data = out.weight.data[:, chosen].clone()
        self.out.bias.data = out.bias.data.clone()
        self.norm = copy.deepcopy(layer.output.LayerNorm)
        self.dropout = copy.deepcopy(layer.output.dropout)

    def forward(self, x_RD: Tensor) -> Tensor:
        y_RD = self.out(functional.gelu(self.into(x_RD)))
        return self.norm(self.dropout(y_RD) + x_RD)


class MixedLayer(nn.Module):
    """A layer whose tokens each visit the experts that the router gives them; padding visits none
    and is 0. Routers that read the user get the token."""

    def __init__(self, layer: Layer, mixture: MoE) -> None:
        super().__init__()
        self.attention = layer.attention
        self.mixture = mixture

    def forward(self, x_BLD: Tensor, text: Text) -> tuple[Tensor, Routing]:
        x_BLD = self.attention(x_BLD, text.mask_BL)
        mixed_N1D, (routing,) = self.mixture(x_BLD[text.mask_BL], text.ids_BL[text.mask_BL])
        y_BLD = x_BLD.new_zeros(x_BLD.shape)
        y_BLD[text.mask_BL] = mixed_N1D[:, 0].to(y_BLD.dtype)
        return y_BLD, routing


def convert(
    teacher: Encoder,
    scores: Sequence[Tensor],
    chosen: dict[str, Any],
    *,
    experts: int,
    share: int,
    units: int,
) -> Encoder:
    """A copy of `teacher` in which every feed-forward block is a mixture.

    `scores`: of each layer's units (importance.py). `chosen`: name and settings of the router.
    Raises ConfigError for an unsupported router or impossible sizes.
    """
    student = copy.deepcopy(teacher)
    for index, (layer, score_F) in enumerate(zip(teacher.layers, scores, strict=True)):
        assert isinstance(layer, Layer)
        ranking = score_F.argsort(descending=True, stable=True).tolist()
        made = [Expert(layer, own) for own in deal(ranking, experts, share, units)]
        mixture = MoE(made, [_router(teacher, chosen, experts, index)])
        copied = student.layers[index]
        assert isinstance(copied, Layer)
        student.layers[index] = MixedLayer(copied, mixture)
    return student


def _router(teacher: Encoder, chosen: dict[str, Any], experts: int, index: int) -> Any:
    """That of layer `index`. Hash routers have a table of the vocabulary for each layer."""
    sizes = teacher.sizes
    own = {**chosen, "seed": chosen.get("seed", 0) + index} if chosen["name"] == "hash" else chosen
    made = router(
        **own,
        input_dim=sizes.hidden_size,
        num_experts=experts,
        num_users=sizes.vocab_size if chosen["name"] == "hash" else 0,
    )
    if made.passes != 1:
        raise ConfigError(
            f"--router must need one pass in training, got {chosen['name']}; take another of "
            "`recsys-moe routers`"
        )
    return made
