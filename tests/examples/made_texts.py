"""Small made data in the official layouts for tests of the language example."""

from __future__ import annotations

from pathlib import Path

import torch

from examples.moebert import titles
from examples.moebert.encoder import Encoder, Sizes, Text

SIZES = Sizes(
    30,
    3,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=16,
)
WORDS = {"Drama": "grief", "Comedy": "laughs", "Horror": "ghosts", "Action": "chases"}


def movies_folder(folder: Path) -> Path:
    """movies.dat of 12 films of each genre; a title's word tells the genre."""
    lines = [
        f"{place}::{WORDS[genre]} {number} ({1990 + number})::{genre}|Thriller"
        for place, genre in enumerate(titles.GENRES)
        for number in range(12)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    more = ["99::Both (1980)::Drama|Comedy", "98::Neither (1980)::War"]
    (folder / "movies.dat").write_text("\n".join([*lines, *more]) + "\n", encoding="latin-1")
    return folder


def small_encoder(seed: int = 0) -> Encoder:
    """2 layers, 8 wide, 12 units, 3 classes, with weights large enough to matter."""
    torch.manual_seed(seed)
    encoder = Encoder(SIZES).eval()
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith("weight") and parameter.dim() == 2:
                parameter.normal_(std=0.4)
            elif name.endswith("dense.bias"):
                parameter.normal_(std=0.2)
    return encoder


def texts(rows: int = 5, length: int = 7) -> tuple[Text, torch.Tensor]:
    """Of random tokens and lengths, with a class each."""
    generator = torch.Generator().manual_seed(1)
    ids_BL = torch.randint(4, SIZES.vocab_size, (rows, length), generator=generator)
    sizes_B = torch.randint(2, length + 1, (rows,), generator=generator)
    mask_BL = torch.arange(length) < sizes_B[:, None]
    text = Text(ids_BL * mask_BL, (torch.arange(length) > 3).long().expand(rows, -1), mask_BL)
    return text, torch.randint(SIZES.num_labels, (rows, 1), generator=generator)
