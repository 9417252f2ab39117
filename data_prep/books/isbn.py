"""Repair of the ISBNs that people typed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def repair(raw: pa.Array) -> tuple[pa.Array, int]:
    """ISBNs as ISBN-10 where possible, and how many entries changed.

    Blanks, dashes and other signs are dropped, letters become capitals, and a 978 ISBN-13 turns
    into its ISBN-10. Anything else without a right ISBN-10 check digit stays as it was.
    """
    encoded = raw.dictionary_encode()
    spelled = pc.replace_substring_regex(pc.utf8_upper(encoded.dictionary), "[^0-9X]", "")
    fixed = [
        _isbn10(bare) or before
        for bare, before in zip(spelled.to_pylist(), encoded.dictionary.to_pylist(), strict=True)
    ]
    repaired = pa.array(fixed, type=pa.string()).take(encoded.indices)
    return repaired, int(pc.sum(pc.not_equal(repaired, raw)).as_py() or 0)


def _isbn10(bare: str) -> str | None:
    """`bare` as an ISBN-10 when its check digit is right, else None."""
    if len(bare) == 13 and bare.startswith("978") and _valid13(bare):
        return bare[3:12] + _check_digit(bare[3:12])
    if len(bare) == 10 and bare[:9].isdigit() and bare[9] == _check_digit(bare[:9]):
        return bare
    return None


def _check_digit(nine: str) -> str:
    """Weights 10..2 for the nine digits; all ten add up to a multiple of 11, X being 10."""
    total = sum(weight * int(digit) for weight, digit in zip(range(10, 1, -1), nine, strict=True))
    return "0123456789X"[-total % 11]


def _valid13(bare: str) -> bool:
    """Weights 1, 3, 1, 3, ... add up to a multiple of 10."""
    if not bare.isdigit():
        return False
    return sum(int(digit) * (1, 3)[place % 2] for place, digit in enumerate(bare)) % 10 == 0
