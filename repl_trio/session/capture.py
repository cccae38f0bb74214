"""What is kept of one output stream: the first bytes, the last bytes, and how many there were. Sans-IO."""

from __future__ import annotations


class Capture:
    """The head and the tail of a byte stream of any length, in bounded memory.

    Offsets are bytes from the start of the stream. Text is cut at UTF-8 boundaries; bytes that are no UTF-8 come out as
    U+FFFD.
    """

    def __init__(self, head: int, tail: int) -> None:
        self._head_room = head
        self._tail_room = tail
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def write(self, chunk: bytes) -> None:
        """Append bytes."""
        self.total += len(chunk)
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail += chunk
            # Twice the room before a cut: the cost of cutting is paid once per `tail` bytes, not per write.
            if len(self._tail) > 2 * self._tail_room:
                del self._tail[: -self._tail_room]

    @property
    def missing(self) -> int:
        """Bytes between head and tail that are gone."""
        return self.total - len(self._head) - min(len(self._tail), self._tail_room)

    def render(self, room: int | None = None) -> tuple[str, int | None]:
        """What is kept as text, at most about `room` bytes of it, taken from both ends (the end has priority).

        The second value is the offset where the text has a gap, None when it is complete: `read` goes on from there.
        """
        head, tail = bytes(self._head), bytes(self._tail[-self._tail_room :]) if self._tail else b""
        kept = len(head) + len(tail)
        if room is not None and kept > room:
            # Two fifths for the beginning: what a cell says last (a result, a traceback) matters more.
            first = room * 2 // 5
            whole = head + tail if not self.missing else b""
            if whole:
                head, tail = whole[:first], whole[len(whole) - (room - first) :]
            else:
                tail_room = min(len(tail), room - first)
                head, tail = head[: room - tail_room], tail[len(tail) - tail_room :]
        missing = self.total - len(head) - len(tail)
        if not missing:
            return (head + tail).decode("utf-8", "replace"), None
        # Whole lines where they are short: half a number would look like a number.
        head, tail = _until_line(head), _from_line(tail)
        missing = self.total - len(head) - len(tail)
        marker = f"[... {missing:,} bytes of output not shown ...]\n"
        separator = "" if not head or head.endswith(b"\n") else "\n"
        return head.decode("utf-8", "replace") + separator + marker + _decode_from_boundary(tail), len(head)

    def read(self, after: int, room: int, *, ended: bool) -> tuple[str, int]:
        """The kept text from offset `after` on, at most `room` bytes of it, and the offset to go on from.

        Where bytes between `after` and the tail are gone, a marker stands for them. Unless the stream has `ended`, a
        character whose last bytes have not arrived yet is left for the next read.
        """
        after = min(max(after, 0), self.total)
        tail = self._tail[-self._tail_room :] if self._tail else bytearray()
        # Without a gap the two are one: a character may begin in the head and end in the tail.
        kept = self._head if self.missing else self._head + tail
        if after < len(kept):
            piece = bytes(kept[after : after + room])
            at_end = after + len(piece) == self.total
            whole = piece if ended and at_end else _until_boundary(piece) if at_end else _until_line(piece)
            if not whole and self.missing:
                whole = piece  # the character goes on in what was lost: show it broken rather than stop here for ever
            return whole.decode("utf-8", "replace"), after + len(whole)
        start = self.total - len(tail)
        marker = ""
        if after < start:
            marker, after = f"\n[... {start - after:,} bytes of output not kept ...]\n", start
        piece = bytes(tail[after - start : after - start + room])
        at_end = after + len(piece) == self.total
        whole = piece if ended and at_end else _until_boundary(piece) if at_end else _until_line(piece)
        text = _decode_from_boundary(whole) if marker else whole.decode("utf-8", "replace")
        return marker + text, after + len(whole)

    def last_line(self) -> str:
        """The last non-empty line, for progress messages."""
        kept = self._tail if self.missing else self._head[-2_000:] + self._tail
        recent = bytes(kept[-2_000:]).decode("utf-8", "replace")
        lines = [line.strip() for line in recent.replace("\r", "\n").split("\n")]
        return next((line for line in reversed(lines) if line), "")


_LINE = 200  # bytes: how far a cut may move to fall between two lines


def _until_line(piece: bytes) -> bytes:
    """`piece` without a line that is incomplete at its end, if that is short; else without an incomplete character."""
    end = piece.rfind(b"\n", max(0, len(piece) - _LINE))
    return piece[: end + 1] if end >= 0 else _until_boundary(piece)


def _from_line(piece: bytes) -> bytes:
    """`piece` without a line that is incomplete at its beginning, if that is short."""
    end = piece.find(b"\n", 0, _LINE)
    return piece[end + 1 :] if 0 <= end < len(piece) - 1 else piece


def _until_boundary(piece: bytes) -> bytes:
    """`piece` without a UTF-8 character that is incomplete at its end."""
    for back in range(1, min(4, len(piece)) + 1):
        byte = piece[-back]
        if byte < 0x80:
            return piece
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return piece if back >= length else piece[:-back]
    return piece


def _decode_from_boundary(piece: bytes) -> str:
    """Text of a piece that may begin inside a character."""
    skip = 0
    while skip < min(3, len(piece)) and piece[skip] & 0xC0 == 0x80:
        skip += 1
    return piece[skip:].decode("utf-8", "replace")
