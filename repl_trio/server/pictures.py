"""What the first and the last bytes of an image say about it. Pure.

A client that hands an image to its model and finds that it is none may refuse the whole conversation from then on. So
an image is shown only when its header is understood and its end is there.
"""

from __future__ import annotations

from collections.abc import Callable

HEADER = 65_536
"""bytes. Enough of any image to find its dimensions, unless a camera has put a book in front of them."""

TRAILER = 1_024
"""bytes at the end of an image. Its end mark is in them, also where somebody has put a little behind it."""

Dimensions = tuple[int, int]


def dimensions(media_type: str, header: bytes) -> Dimensions | None:
    """Width and height in pixels; None where the bytes are no such image or say nothing of it."""
    reader = _READERS.get(media_type)
    found = reader(header) if reader is not None else None
    return found if found is not None and min(found) > 0 else None


def is_whole(media_type: str, header: bytes, trailer: bytes, size: int) -> bool:
    """Whether the end of an image of `size` bytes is there, as far as its last bytes tell."""
    if media_type == "image/webp":
        return _little(header[4:8]) + 8 <= size  # has its length in front and no mark at its end
    if media_type == "image/gif":
        # One common byte: anywhere else than at the very end it says nothing.
        return trailer.rstrip(b"\0").endswith(_ENDS[media_type])
    return _ENDS[media_type] in trailer


def is_shown(media_type: str) -> bool:
    """Whether clients show this kind of image. SVG is refused by many."""
    return media_type in _READERS


def _png(header: bytes) -> Dimensions | None:
    if len(header) < 24 or not header.startswith(b"\x89PNG\r\n\x1a\n") or header[12:16] != b"IHDR":
        return None
    return _big(header[16:20]), _big(header[20:24])


def _gif(header: bytes) -> Dimensions | None:
    if len(header) < 10 or header[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    return _little(header[6:8]), _little(header[8:10])


def _jpeg(header: bytes) -> Dimensions | None:
    """Segment by segment up to the first frame header (SOF), which has the dimensions."""
    if not header.startswith(b"\xff\xd8"):
        return None
    at = 2
    while at + 9 <= len(header) and header[at] == 0xFF:
        marker = header[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return _big(header[at + 7 : at + 9]), _big(header[at + 5 : at + 7])
        else:
            at += 2 + _big(header[at + 2 : at + 4])
    return None


def _webp(header: bytes) -> Dimensions | None:
    if len(header) < 30 or header[:4] != b"RIFF" or header[8:12] != b"WEBP":
        return None
    kind = header[12:16]
    if kind == b"VP8X":
        return _little(header[24:27]) + 1, _little(header[27:30]) + 1
    if kind == b"VP8L" and header[20] == 0x2F:
        packed = _little(header[21:25])
        return (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and header[23:26] == b"\x9d\x01\x2a":
        return _little(header[26:28]) & 0x3FFF, _little(header[28:30]) & 0x3FFF
    return None


def _big(part: bytes) -> int:
    return int.from_bytes(part, "big")


def _little(part: bytes) -> int:
    return int.from_bytes(part, "little")


_READERS: dict[str, Callable[[bytes], Dimensions | None]] = {
    "image/png": _png,
    "image/jpeg": _jpeg,
    "image/gif": _gif,
    "image/webp": _webp,
}
_ENDS = {"image/png": b"IEND", "image/jpeg": b"\xff\xd9", "image/gif": b"\x3b"}
