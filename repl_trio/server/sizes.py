"""What parts of a result cost on the wire, and how sizes are told to people."""

from __future__ import annotations

import binascii
from collections.abc import Sequence

from ..wire import jsontext
from ..wire.jsonrpc import Params

FRAMEWORK = 1_400
"""bytes. Keys, ids, flags and sentences around the parts of a result."""


def base64_of(content: bytes) -> str:
    """Bytes as base64 on one line."""
    return binascii.b2a_base64(content, newline=False).decode("ascii")


def cost(part: object) -> int:
    """Bytes on the wire."""
    return len(jsontext.dumps(part))


def within(items: Sequence[Params], room: int) -> list[Params]:
    """The first of some objects, as far as their JSON fits into `room` bytes."""
    kept: list[Params] = []
    for item in items:
        room -= cost(item) + 1
        if room < 0:
            break
        kept.append(item)
    return kept


def in_words(size: int) -> str:
    """A number of bytes, rounded: `900 bytes`, `23 kB`, `1.2 MB`."""
    if size < 1_000:
        return f"{size} bytes"
    return f"{size / 1_000:.0f} kB" if size < 999_500 else f"{size / 1_000_000:.1f} MB"
