"""Inputs that nobody would write: bytes changed at random, and documents made by a grammar."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

Rng = np.random.Generator
TOKENS = tuple(
    token.encode("utf-8", "surrogatepass")
    for token in (
        *("", " ", "\0", "\n", "\r", "\r\n", '"', "'", '""', "\\", ",", ";", "::", ":", "|", "\t"),
        *("-1", "0", "1e999", "-0.0", "NaN", "inf", "1e-400", "9" * 30, "9" * 5000, "2147483648"),
        *("9223372036854775808", "-9223372036854775809", "0x10", "1_000", "\u0663", "1,5", "true"),
        *("null", "None", "{}", "[]", "[[", "{" * 40, "=1+1", "@x", "../", "..", "/", "/dev/null"),
        *("\ufeff", "\ud800", "\u202e", "\U0001f600", "%s%n", "{0}", "<script>", "&a", "*a", "!!x"),
        *(
            "!!python/object:os.system",
            "2001-99-99",
            "---",
            "? ",
            "~",
            "<<",
            "\x1f",
            "\x85",
            "[/b]",
        ),
    )
)
NAMES = ("model", "router", "name", "k", "trainer", "data", "optim", "lr", "tasks", "watch", "a.b")


def mutated(rng: Rng, data: bytes, tokens: tuple[bytes, ...] = TOKENS) -> bytes:
    """One to four changes, half of the time one; `tokens` are put in between or in place."""
    for _ in range(int(rng.choice([1, 1, 1, 2, 3, 4]))):
        data = CHANGES[int(rng.integers(len(CHANGES)))](rng, data, tokens)
    return data


def _place(rng: Rng, data: bytes) -> int:
    return int(rng.integers(len(data) + 1))


def _flip(rng: Rng, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    if not data:
        return data
    place = _place(rng, data[1:])
    return data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :]


def _cut(rng: Rng, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    return data[: _place(rng, data)]


def _insert(rng: Rng, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    place = _place(rng, data)
    return data[:place] + tokens[int(rng.integers(len(tokens)))] + data[place:]


def _replace(rng: Rng, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    """A word or a number gives way to a token: the rest stays what it was."""
    end = place = _place(rng, data)
    while end < len(data) and data[end : end + 1].isalnum():
        end += 1
    while place and data[place - 1 : place].isalnum():
        place -= 1
    return data[:place] + tokens[int(rng.integers(len(tokens)))] + data[end:]


def _drop(rng: Rng, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    place = _place(rng, data)
    return data[:place] + data[place + int(rng.integers(1, 20)) :]


def _repeat(rng: Rng, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    first, last = sorted((_place(rng, data), _place(rng, data)))
    return data[:last] + data[first:last][:5000] * int(rng.integers(1, 4)) + data[last:]


def _swap(rng: Rng, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    first, middle, last = sorted(_place(rng, data) for _ in range(3))
    return data[:first] + data[middle:last] + data[first:middle] + data[last:]


def _nest(rng: Rng, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    """Brackets, once in fifty times so many that a parser that calls itself must end."""
    place, depth = _place(rng, data), 100_000 if rng.random() < 0.02 else int(rng.integers(1, 60))
    return data[:place] + bytes([int(rng.choice(list(b"[{(")))]) * depth + data[place:]


CHANGES = (_flip, _flip, _cut, _insert, _insert, _replace, _replace, _drop, _repeat, _swap, _nest)


def value(rng: Rng, depth: int = 3) -> Any:
    """Any value of JSON; surrogates, infinities and numbers of any size among them."""
    kind = int(rng.integers(9 if depth else 7))
    if kind == 7:
        return [value(rng, depth - 1) for _ in range(int(rng.integers(4)))]
    if kind == 8:
        return {text(rng): value(rng, depth - 1) for _ in range(int(rng.integers(4)))}
    numbers = (0, -1, 1, 2, 1.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**63, 10**400)
    plain = (None, True, False, text(rng), numbers[int(rng.integers(len(numbers)))])
    return plain[int(rng.integers(len(plain)))]


def text(rng: Rng) -> str:
    token = TOKENS[int(rng.integers(len(TOKENS)))].decode("utf-8", "surrogatepass")
    return str(rng.choice(NAMES)) if rng.random() < 0.4 else token


def redrawn(rng: Rng, document: Any, chance: float) -> Any:
    """`document` with parts of it replaced, left out or doubled; each with this chance."""
    if rng.random() < chance:
        return value(rng)
    if isinstance(document, dict):
        kept = {k: redrawn(rng, v, chance) for k, v in document.items() if rng.random() > chance}
        return {**kept, text(rng): value(rng)} if rng.random() < chance else kept
    if isinstance(document, list):
        parts = [redrawn(rng, part, chance) for part in document]
        return parts + parts[:1] if rng.random() < chance else parts
    return document


def json_text(rng: Rng, data: bytes) -> bytes:
    """Half of the time the bytes are mutated, else the document is, at one to a few places."""
    if rng.random() < 0.5:
        return mutated(rng, data)
    document = redrawn(rng, json.loads(data), float(rng.choice([0.01, 0.05, 0.2])))
    return json.dumps(document).encode()


def table_text(rng: Rng, data: bytes, separators: bytes = b",;\t|:") -> bytes:
    """A table in text with cells, lines or separators changed, or mutated bytes."""
    if rng.random() < 0.5:
        return mutated(rng, data)
    lines = data.split(b"\n")
    separator = max((separators[n : n + 1] for n in range(len(separators))), key=lines[0].count)
    for _ in range(int(rng.integers(1, 5))):
        row = int(rng.integers(len(lines)))
        cells = lines[row].split(separator)
        token = TOKENS[int(rng.integers(len(TOKENS)))]
        cells[int(rng.integers(len(cells)))] = token
        lines[row] = separator.join(cells)
        if rng.random() < 0.2:
            lines.insert(row, lines[int(rng.integers(len(lines)))])
    return b"\n".join(lines)
