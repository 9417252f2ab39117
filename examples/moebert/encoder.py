"""A BERT encoder with a classifier, its parameters named as in Hugging Face's transformers.

Axes: B batch, L positions, D width, A attention heads, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys_moe import Routing
from recsys_moe.errors import ConfigError


@dataclass(frozen=True)
class Sizes:
    """Keys of a checkpoint's config.json; the defaults but for the vocabulary are small."""

    vocab_size: int
    num_labels: int = 2
    """Classes; 0: an answer is to be found in the text, by its first and last token."""
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int = 512
    max_position_embeddings: int = 64
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12

    def check(self) -> Sizes:
        """Itself. Raises ConfigError for sizes that no encoder can have."""
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size must be a multiple of num_attention_heads="
                f"{self.num_attention_heads}, got {self.hidden_size}"
            )
        return self


class Text(NamedTuple):
    """A batch: (B, L) token ids, which of two sentences each is of, and where a text is."""

    ids_BL: Tensor
    types_BL: Tensor
    mask_BL: Tensor
    """bool, False at padding."""


class Seen(NamedTuple):
    """What an encoder makes of a batch."""

    logits: list[Tensor]
    """(B, C) each: of the class; or of the first and the last token of an answer, C = L."""
    hidden: list[Tensor]
    """(B, L, D) each: the embeddings, then the output of each layer."""
    routings: list[Routing]
    """Of each layer whose feed-forward block is a mixture, in a row per token of a text."""


class Encoder(nn.Module):
    """Text -> class or answer. Its layers may be of another kind, see convert.py."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes.check()
        width, classes = sizes.hidden_size, sizes.num_labels
        layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.num_hidden_layers))
        self.bert = nn.ModuleDict(
            {"embeddings": Embeddings(sizes), "encoder": nn.ModuleDict({"layer": layers})}
        )
        if classes:
            self.bert["pooler"] = nn.ModuleDict({"dense": nn.Linear(width, width)})
            self.dropout = nn.Dropout(sizes.hidden_dropout_prob)
            self.classifier = nn.Linear(width, classes)
        else:
            self.qa_outputs = nn.Linear(width, 2)
        self.apply(_as_bert)

    @property
    def layers(self) -> nn.ModuleList:
        found = self.bert["encoder"]["layer"]  # type: ignore[index]
        assert isinstance(found, nn.ModuleList)
        return found

    def forward(self, text: Text) -> Seen:
        x_BLD = self.bert["embeddings"](text)
        hidden, routings = [x_BLD], []
        for layer in self.layers:
            x_BLD, routing = layer(x_BLD, text)
            hidden.append(x_BLD)
            routings += [] if routing is None else [routing]
        return Seen(self._read(x_BLD, text), hidden, routings)

    def _read(self, x_BLD: Tensor, text: Text) -> list[Tensor]:
        """Logits: the class is read off the first token, [CLS]."""
        if self.sizes.num_labels:
            pooled_BD = torch.tanh(self.bert["pooler"]["dense"](x_BLD[:, 0]))  # type: ignore[index]
            return [self.classifier(self.dropout(pooled_BD))]
        ends_BL2 = self.qa_outputs(x_BLD)
        return [end.masked_fill(~text.mask_BL, -1e4) for end in ends_BL2.unbind(-1)]


class Embeddings(nn.Module):
    """Of token, position and sentence: their sum, normalised."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.hidden_size
        self.word_embeddings = nn.Embedding(sizes.vocab_size, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(sizes.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(sizes.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, sizes.layer_norm_eps)
        self.dropout = nn.Dropout(sizes.hidden_dropout_prob)

    def forward(self, text: Text) -> Tensor:
        positions_L = torch.arange(text.ids_BL.shape[1], device=text.ids_BL.device)
        words_BLD = self.word_embeddings(text.ids_BL) + self.token_type_embeddings(text.types_BL)
        return self.dropout(self.LayerNorm(words_BLD + self.position_embeddings(positions_L)))


class Layer(nn.Module):
    """Attention, then the feed-forward block, each with residual and LayerNorm after it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, units = sizes.hidden_size, sizes.intermediate_size
        self.attention = Attention(sizes)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, units)})
        self.output = _Output(units, sizes)

    def forward(self, x_BLD: Tensor, text: Text) -> tuple[Tensor, None]:
        x_BLD = self.attention(x_BLD, text.mask_BL)
        return self.output(functional.gelu(self.intermediate["dense"](x_BLD)), x_BLD), None


class Attention(nn.Module):
    """Every token looks at the tokens of its own text."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.hidden_size
        self.heads, self.rate = sizes.num_attention_heads, sizes.attention_probs_dropout_prob
        parts = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        self.self = nn.ModuleDict(parts)
        self.output = _Output(width, sizes)

    def forward(self, x_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        query, key, value = (
            self.self[name](x_BLD).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for name in ("query", "key", "value")
        )
        seen_BALD = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            mask_BL[..., None, None, :],
            self.rate if self.training else 0.0,
        )
        return self.output(seen_BALD.transpose(-3, -2).flatten(-2), x_BLD)


class _Output(nn.Module):
    """The end of either block."""

    def __init__(self, units: int, sizes: Sizes) -> None:
        super().__init__()
        self.dense = nn.Linear(units, sizes.hidden_size)
        self.LayerNorm = nn.LayerNorm(sizes.hidden_size, sizes.layer_norm_eps)
        self.dropout = nn.Dropout(sizes.hidden_dropout_prob)

    def forward(self, y: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(y)) + residual)


def _as_bert(module: nn.Module) -> None:
    """N(0, 0.02) weights and zero biases."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
