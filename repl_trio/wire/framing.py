"""Lines of bounded length out of a byte stream that arrives in any chunking."""

from __future__ import annotations


class Oversized:
    """Stands where a line was that exceeded the bound. `size` is its length in bytes, as far as it was read."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class LineDecoder:
    """Newline-terminated lines; a line over `limit` bytes is counted, skipped and reported, never held.

    A trailing `\\r` is removed. An unterminated rest stays inside until `finish`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()
        self._skipped = 0  # bytes of the oversized line being skipped, 0 when none is

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """The lines that `chunk` completed, in order."""
        lines: list[bytes | Oversized] = []
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            self._hold(piece)
            lines.append(self._take())
        self._hold(pieces[-1])
        return lines

    def finish(self) -> list[bytes | Oversized]:
        """What is left at EOF: an unterminated line counts as a line, nothing as none."""
        if self._held or self._skipped:
            return [self._take()]
        return []

    def _hold(self, piece: bytes) -> None:
        if self._skipped:
            self._skipped += len(piece)
        elif len(self._held) + len(piece) > self._limit:
            self._skipped = len(self._held) + len(piece)
            self._held.clear()
        else:
            self._held += piece

    def _take(self) -> bytes | Oversized:
        if self._skipped:
            size, self._skipped = self._skipped, 0
            return Oversized(size)
        line = bytes(self._held)
        self._held.clear()
        return line[:-1] if line.endswith(b"\r") else line
