"""The table of mixers. To add one, write its class in a file here and list it in MIXERS."""

from __future__ import annotations

from recsys_moe.model.encoders.mixers.attention import Attention
from recsys_moe.model.encoders.mixers.base import Extender, Mixer, State
from recsys_moe.model.encoders.mixers.decay import Decay
from recsys_moe.model.encoders.mixers.gru import GRU
from recsys_moe.model.encoders.mixers.lru import LRU

__all__ = ["MIXERS", "Extender", "Mixer", "State"]

MIXERS: dict[str, type[Mixer]] = {
    "decay": Decay,
    "lru": LRU,
    "gru": GRU,
    "attention": Attention,
}
