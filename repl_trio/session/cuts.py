"""Where a piece of UTF-8 text may end: between two lines, or at least between two characters. Sans-IO."""

from __future__ import annotations

CHARACTER = 4
"""bytes. The longest character."""

LINE = 200
"""bytes. How far a cut may move to fall between two lines."""


def until_line(piece: bytes) -> bytes:
    """`piece` up to its last line end, empty when that is not near its end."""
    return piece[: piece.rfind(b"\n", max(0, len(piece) - LINE)) + 1]


def until_boundary(piece: bytes) -> bytes:
    """`piece` without a character that is incomplete at its end."""
    for back in range(1, min(CHARACTER, len(piece)) + 1):
        if piece[-back] & 0xC0 != 0x80:
            return piece if length_of(piece[-back]) <= back else piece[:-back]
    return piece


def from_line(piece: bytes) -> bytes:
    """`piece` without a line that is incomplete at its beginning, if that is short."""
    end = piece.find(b"\n", 0, LINE)
    return piece[end + 1 :] if 0 <= end < len(piece) - 1 else piece


def from_boundary(piece: bytes) -> bytes:
    """`piece` without a character that is incomplete at its beginning."""
    skip = 0
    while skip < min(CHARACTER - 1, len(piece)) and piece[skip] & 0xC0 == 0x80:
        skip += 1
    return piece[skip:]


def length_of(first: int) -> int:
    """How many bytes a character has that begins with this one."""
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
