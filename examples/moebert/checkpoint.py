"""Encoders on disk in the layout of Hugging Face's transformers, which need not be installed:
config.json, vocab.txt and model.safetensors. Nothing is unpickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from examples.common.outputs import write, write_json
from examples.moebert.encoder import Encoder, Sizes
from examples.moebert.words import Words
from recsys_moe.errors import DataError

OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names in checkpoints that come from TensorFlow, such as bert-base-uncased."""
HEADS = ("classifier.", "qa_outputs.", "bert.pooler.")
WEIGHTS = "model.safetensors"


def load(folder: Path, classes: int, *, fresh_head: bool = False) -> tuple[Encoder, Words]:
    """The encoder of a checkpoint for a task of so many classes, and its vocabulary.

    `fresh_head`: what reads the class may be missing, or be for another task, and then starts anew.
    Raises DataError.
    """
    for name in ("config.json", "vocab.txt", WEIGHTS):
        if not (folder / name).exists():
            raise DataError(
                f"{folder} must have config.json, vocab.txt and {WEIGHTS}, got no {name}; "
                "save_pretrained of transformers writes the last with safe_serialization=True"
            )
    config = json.loads((folder / "config.json").read_text())
    encoder = Encoder(_sizes(folder, config, classes))
    _fill(encoder, _tensors(folder / WEIGHTS), folder, fresh_head)
    said = folder / "tokenizer_config.json"
    tokenizer = json.loads(said.read_text()) if said.exists() else {}
    words = Words.load(folder / "vocab.txt", lower=tokenizer.get("do_lower_case", True))
    if len(words.pieces) > encoder.sizes.vocab_size:
        raise DataError(
            f"vocab.txt of {folder} must have at most vocab_size={encoder.sizes.vocab_size} lines, "
            f"got {len(words.pieces)}"
        )
    return encoder.eval(), words


def _sizes(folder: Path, config: dict[str, Any], classes: int) -> Sizes:
    if config.get("model_type", "bert") != "bert" or config.get("hidden_act", "gelu") != "gelu":
        found = f"{config.get('model_type')} with {config.get('hidden_act')}"
        raise DataError(f"{folder} must hold a BERT with gelu, got {found}")
    names = {field.name for field in dataclasses.fields(Sizes)}
    return Sizes(**{k: v for k, v in config.items() if k in names} | {"num_labels": classes})


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        found = safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    renamed = {}
    for name, tensor in found.items():
        for old, new in OLD.items():
            name = name.replace(old, new)
        is_bare = name.startswith(("embeddings.", "encoder.", "pooler."))
        renamed[f"bert.{name}" if is_bare else name] = tensor.float()
    return renamed


def _fill(encoder: Encoder, there: dict[str, Tensor], folder: Path, fresh_head: bool) -> None:
    """Copy what the encoder needs; other tensors of the file are of other heads."""
    own = encoder.state_dict()
    for name, tensor in own.items():
        found = there.get(name)
        if found is not None and found.shape == tensor.shape:
            tensor.copy_(found)
        elif not (fresh_head and name.startswith(HEADS)):
            shape = "none" if found is None else str(list(found.shape))
            raise DataError(
                f"{folder / WEIGHTS} must have {name} of shape {list(tensor.shape)}, got {shape}; "
                "is it fine-tuned for this task?"
            )


def save(folder: Path, encoder: Encoder, words: Words) -> None:
    """Write a checkpoint; its weights last, so that a folder with them is whole."""
    labels = {str(n): f"LABEL_{n}" for n in range(encoder.sizes.num_labels)}
    config = {"model_type": "bert", "hidden_act": "gelu", "id2label": labels}
    sizes = dataclasses.asdict(encoder.sizes)
    del sizes["num_labels"]
    write_json(folder / "config.json", {**config, **sizes})
    write(folder / "vocab.txt", "".join(f"{piece}\n" for piece in words.pieces).encode())
    write_json(folder / "tokenizer_config.json", {"do_lower_case": words.lower})
    tensors = {name: t.detach().cpu().contiguous() for name, t in encoder.state_dict().items()}
    write(folder / WEIGHTS, safetensors.torch.save(tensors, {"format": "pt"}))


def sha256(folder: Path) -> str:
    """Of the weights."""
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


def load_scores(path: Path) -> list[Tensor] | None:
    """Importance of units by layer, where it was saved."""
    if not path.exists():
        return None
    found = safetensors.torch.load_file(path)
    return [found[str(index)] for index in range(len(found))]


def save_scores(path: Path, scores: list[Tensor]) -> None:
    named = {str(index): score.cpu() for index, score in enumerate(scores)}
    write(path, safetensors.torch.save(named))
