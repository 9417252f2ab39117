"""Checkpoints, vocabularies and the tasks' files, in the layouts that others write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from examples.moebert import checkpoint, squad, titles
from examples.moebert.rows import Batches
from examples.moebert.settings import TASKS
from examples.moebert.words import CLS, PAD, SEP, UNKNOWN, Words, made_from, split
from recsys_moe.errors import DataError
from tests.examples.made_texts import SIZES, movies_folder, small_encoder, texts

WORDS = Words([PAD, UNKNOWN, CLS, SEP, "un", "##aff", "##able", "want", ",", "who", "won", "x"])
LAYER = "bert.encoder.layer.1."
NAMES = [
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
]


def berts(path: Path) -> None:
    """A made checkpoint as bert-base-uncased's: TensorFlow's names, and heads that are not used."""
    state = small_encoder().state_dict()
    state = {name: tensor + 0.5 for name, tensor in state.items()}
    state["cls.predictions.bias"] = torch.zeros(3)
    state["bert.embeddings.position_ids"] = torch.arange(16)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, theirs in old.items():
        state = {name.replace(new, theirs): tensor for name, tensor in state.items()}
    path.mkdir()
    safetensors.torch.save_file(state, path / "model.safetensors", {"format": "pt"})
    config = {"model_type": "bert", "hidden_act": "gelu", "architectures": ["Bert"]}
    config |= {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"intermediate_size": 12, "max_position_embeddings": 16, "type_vocab_size": 2}
    (path / "config.json").write_text(json.dumps(config))
    (path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in WORDS.pieces))


def test_the_names_are_those_of_transformers() -> None:
    own = set(small_encoder().state_dict())
    expected = {f"{LAYER}{name}.{part}" for name in NAMES for part in ("weight", "bias")}
    assert expected == {name for name in own if name.startswith(LAYER)}
    embeddings = ("word", "position", "token_type")
    assert {f"bert.embeddings.{name}_embeddings.weight" for name in embeddings} < own
    assert {"bert.embeddings.LayerNorm.weight", "bert.pooler.dense.bias", "classifier.bias"} < own


def test_a_state_dict_of_bert_fills_the_encoder(tmp_path: Path) -> None:
    berts(tmp_path / "bert")
    encoder, words = checkpoint.load(tmp_path / "bert", 3)
    for name, tensor in small_encoder().state_dict().items():
        torch.testing.assert_close(encoder.state_dict()[name], tensor + 0.5)
    assert words.pieces == WORDS.pieces and words.lower and not encoder.training


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    encoder, (text, _) = small_encoder(), texts()
    checkpoint.save(tmp_path, encoder, WORDS)
    again, words = checkpoint.load(tmp_path, 3)
    assert again.sizes == SIZES and words.pieces == WORDS.pieces
    torch.testing.assert_close(again(text).logits[0], encoder(text).logits[0], rtol=0, atol=0)


def test_a_head_for_another_task_starts_anew_only_where_that_is_asked(tmp_path: Path) -> None:
    berts(tmp_path / "bert")
    with pytest.raises(DataError, match=r"classifier.weight .*\[2, 8\]"):
        checkpoint.load(tmp_path / "bert", 2)
    encoder, _ = checkpoint.load(tmp_path / "bert", 2, fresh_head=True)
    assert encoder.classifier.weight.shape == (2, 8)
    answers, _ = checkpoint.load(tmp_path / "bert", 0, fresh_head=True)
    text, _ = texts()
    first, last = answers(text).logits
    assert first.shape == last.shape == text.ids_BL.shape
    assert (first.softmax(-1)[~text.mask_BL] == 0).all()  # no answer ends in padding


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", None, "got no model.safetensors"),
        ("model.safetensors", "no tensors", "cannot be read"),
        ("vocab.txt", "a\nb\n", r"vocab.txt must have a line \[PAD\]"),
        ("config.json", '{"model_type": "gpt2"}', "must .*got gpt2"),
    ],
)
def test_a_folder_that_is_no_checkpoint_is_refused(
    tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    berts(tmp_path / "bert")
    path = tmp_path / "bert" / name
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(DataError, match=said):
        checkpoint.load(tmp_path / "bert", 3)


def test_words_become_pieces_as_in_bert() -> None:
    assert WORDS.tokens("Unaffable, WANT zzz") == ["un", "##aff", "##able", ",", "want", UNKNOWN]
    assert split("Amelie's cafe\u0301 (2001)") == ["amelie", "'", "s", "cafe", "(", "2001", ")"]
    assert split("ABC", lower=False) == ["ABC"]


def test_two_sentences_are_told_apart_and_the_longer_one_is_cut() -> None:
    text = WORDS.encode([("un", "want x x x x"), ("x x", None)], 7)
    pieces = [[WORDS.pieces[index] for index in row] for row in text.ids_BL.tolist()]
    assert pieces[0] == [CLS, "un", SEP, "want", "x", "x", SEP]
    assert pieces[1] == [CLS, "x", "x", SEP, PAD, PAD, PAD]
    assert text.types_BL.tolist()[0] == [0, 0, 0, 1, 1, 1, 1]
    assert text.mask_BL.sum(1).tolist() == [7, 4]


def test_a_made_vocabulary_has_a_piece_for_every_letter() -> None:
    words = made_from(["ab abc", "ab"], least=3)
    assert {"a", "##a", "c", "##c", "ab"} < set(words.pieces)
    assert "abc" not in words.index
    assert words.tokens("abc cab") == ["ab", "##c", "c", "##a", "##b"]


def test_titles_are_of_films_of_one_genre_and_the_same_each_time(tmp_path: Path) -> None:
    folder = movies_folder(tmp_path)
    films = titles.read(folder)
    assert [len(own) for own in films] == [12] * 4  # not Both, not Neither
    assert sorted(films[2])[0] == "ghosts 0"  # without the year
    splits, words = titles.load(folder)
    again, _ = titles.load(folder, words)
    assert splits.test.text.ids_BL.equal(again.test.text.ids_BL)
    assert [len(rows) for rows in (splits.train, splits.val, splits.test)] == [1200, 300, 800]
    assert splits.train.labels_BT.flatten().bincount().tolist() == [300] * 4


def test_the_other_layout_of_movielens_is_read_too(tmp_path: Path) -> None:
    flags = {"Drama": 8, "Comedy": 5, "Horror": 11, "Action": 1}
    lines = [
        f"{n}|{genre} {n} (1995)|01-Jan-1995||url|" + "|".join("01"[i == at] for i in range(19))
        for genre, at in flags.items()
        for n in range(3)
    ]
    (tmp_path / "u.item").write_text("\n".join(lines), encoding="latin-1")
    assert [sorted(own)[0] for own in titles.read(tmp_path)] == [f"{name} 0" for name in flags]
    (tmp_path / "u.item").write_text("\n".join(lines[:-2]), encoding="latin-1")
    with pytest.raises(DataError, match="must .*got 1"):
        titles.read(tmp_path)


GLUE = {
    "cola": ("gj04\t1\t\tun x\ngj04\t0\t*\tx x\n", [1, 0], False),
    "sst2": ("sentence\tlabel\nun x\t0\n", [0], False),
    "mrpc": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tun\tx\n", [1], True),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tun\tx\t0\n", [0], True),
    "qnli": ("index\tquestion\tsentence\tlabel\n0\tun\tx\tnot_entailment\n", [1], True),
    "rte": ("index\tsentence1\tsentence2\tlabel\r\n0\tun\tx\tentailment\r\n", [0], True),
    "mnli": ("index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tun\tx\tneutral\tcontradiction\n",
             [2], True),
}  # fmt: skip


@pytest.mark.parametrize("name", GLUE)
def test_glues_files_are_read(name: str, tmp_path: Path) -> None:
    content, labels, is_pair = GLUE[name]
    for file in ("train", "dev", "dev_matched", "dev_mismatched"):
        (tmp_path / f"{file}.tsv").write_text(content, encoding="utf-8")
    splits, _ = TASKS[name].load(tmp_path, WORDS)
    assert splits.test.labels_BT.flatten().tolist() == labels
    assert splits.train.text.types_BL.any() == is_pair
    assert splits.classes == TASKS[name].classes == (3 if name == "mnli" else 2)
    (text, _), *_ = Batches(splits.val, 8)
    assert text.ids_BL.shape[1] == (5 if is_pair else 4)  # no longer than its longest


def test_a_line_of_glue_without_its_class_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nun\t2\n")
    with pytest.raises(DataError, match="row 1 .*0, 1, got"):
        TASKS["sst2"].load(tmp_path, WORDS)
    (tmp_path / "train.tsv").write_text("sentence\n")
    with pytest.raises(DataError, match="must have a column label"):
        TASKS["sst2"].load(tmp_path, WORDS)


def test_squads_answers_are_tokens_of_the_text(tmp_path: Path) -> None:
    asked = [
        {"question": "who won", "answers": [{"text": "unaffable want", "answer_start": 2}]},
        {"question": "who", "answers": []},
    ]
    content = {"data": [{"paragraphs": [{"context": "x unaffable want, x", "qas": asked}]}]}
    for split_ in ("train", "dev"):
        (tmp_path / f"{split_}-v2.0.json").write_text(json.dumps(content))
    splits, _ = TASKS["squad"].load(tmp_path, WORDS)
    (first, last), nothing = splits.test.labels_BT.tolist()
    pieces = [WORDS.pieces[index] for index in splits.test.text.ids_BL[0, first : last + 1]]
    assert pieces == ["un", "##aff", "##able", "want"] and nothing == [0, 0]


def test_f1_of_spans_counts_common_tokens() -> None:
    """2..5 and 4..9: two in common of four and six, 2 * 2 / 10; then none; then all."""
    guess, true = torch.tensor([[2, 5], [0, 0], [3, 3]]), torch.tensor([[4, 9], [3, 4], [3, 3]])
    torch.testing.assert_close(squad.overlap(guess, true), torch.tensor([0.4, 0.0, 1.0]))
