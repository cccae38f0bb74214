"""What is kept of one output stream: the first bytes, the last bytes, and how many there were. Sans-IO."""

from __future__ import annotations

from .cuts import from_boundary, from_line, until_boundary, until_line
from .redraw import FORM, collapse, form_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .artifacts import Artifact, Draft

_WINDOW = FORM + 2
"""bytes. What may be taken back at most, plus what tells a longer form from the longest that may."""

KEPT = _WINDOW
"""bytes. Kept beyond the tail, so that the tail is whole after the last line was drawn anew."""


class Capture:
    """The head and the tail of a byte stream of any length, in bounded memory.

    Lines that are redrawn with `\\r` are kept in their last form alone (see `redraw`), so that a progress bar pushes no
    line out. Offsets are bytes from the start of the text that is left; they only grow, except inside a line that is
    being redrawn. Text is cut at UTF-8 boundaries; bytes that are no UTF-8 come out as U+FFFD.

    `spill` is called once, when the text outgrows head and tail: what it returns is given the text from its first byte
    on, each byte when it can no longer change.
    """

    def __init__(self, head: int, tail: int, spill: Callable[[], Draft] | None = None) -> None:
        self._head_room = head
        self._tail_room = tail
        self._room = tail + KEPT
        self._head = bytearray()
        self._tail = bytearray()
        self._form: int | None = None  # where the last form of an unfinished line begins, once it had a `\r`
        self._shown = 0  # how far readers have come: what they were given is not taken back
        self._spill = spill
        self._draft: Draft | None = None
        self._spilled = 0
        self.total = 0

    def write(self, chunk: bytes) -> None:
        """Append bytes."""
        if self._form is None and b"\r" not in chunk:
            self._append(chunk)
        else:
            self._redraw(chunk)

    def skip(self, count: int, chunk: bytes) -> None:
        """Count `count` bytes that nobody has looked at, then append `chunk`, which came right after them.

        Only for a stream that is `settled`, and with a chunk of at least `last` bytes: the tail has none of the others.
        """
        self._tail.clear()
        self._form = None
        self.total += count
        self.write(chunk)

    def settled(self, bound: int) -> bool:
        """Whether only the last bytes still matter: the head is full, and more than `bound` bytes have spilled."""
        return self.missing > 0 and (self._spill is None or self._spilled > bound)

    @property
    def last(self) -> int:
        """How many bytes the tail needs."""
        return self._room

    def finish_spill(self) -> Artifact | None:
        """The stream is over: end what was spilled. None when all of it fits into head and tail."""
        if self._spill is None or not self.missing:
            return None
        self._pour(bytes(self._tail))
        draft, self._draft, self._spill = self._draft, None, None
        return draft.finish() if draft is not None else None

    def _append(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail += chunk
            # Twice the room before a cut: the cost of cutting is paid once per `_room` bytes, not per write.
            if len(self._tail) > 2 * self._room:
                if self._spill is not None:
                    self._pour(bytes(self._tail[: -self._room]))
                del self._tail[: -self._room]

    def _pour(self, chunk: bytes) -> None:
        """Give the next bytes to the spill; the head goes before the first."""
        if self._draft is None:
            assert self._spill is not None
            self._draft = self._spill()
            self._draft.write(bytes(self._head))
            self._spilled = len(self._head)
        self._draft.write(chunk)
        self._spilled += len(chunk)

    # -- redrawn lines -----------------------------------------------------------------------------------------

    def _redraw(self, chunk: bytes) -> None:
        """Append bytes where some may replace what is there."""
        drawn = self._form is not None
        start = self._line_start() if self._form is None else max(self._form, self.total - _WINDOW)
        if self._form is None and start < self._shown:
            # A reader has the beginning of this line: it stays, and its new form comes after it.
            end = min(at for at in (chunk.find(b"\r"), chunk.find(b"\n")) if at >= 0) + 1
            drawn = chunk[end - 1 : end] == b"\r"
            self._append(chunk[:end])
            start, chunk = self.total, chunk[end:]
        text = self._take_back(start) + chunk
        last_line = text[text.rfind(b"\n") + 1 :]
        drawn = b"\r" in last_line or (drawn and len(last_line) == len(text))
        text = collapse(text)
        self._append(text)
        self._form = start + form_start(text) if drawn else None

    def _line_start(self) -> int:
        """Where the unfinished line begins, or a place in it that is too far back for any form to begin there."""
        tail = self.total - len(self._tail)
        floor = max(self.total - _WINDOW, tail if tail > len(self._head) else 0)
        found = self._tail.rfind(b"\n", max(floor - tail, 0))
        if found >= 0:
            return tail + found + 1
        found = self._head.rfind(b"\n", floor) if floor < tail else -1
        return found + 1 if found >= 0 else floor

    def _take_back(self, start: int) -> bytes:
        """Remove and return the bytes from offset `start` on, at most `_WINDOW` of them: they are in the buffers."""
        tail = self.total - len(self._tail)
        self.total = start
        if start >= tail:
            taken = bytes(self._tail[start - tail :])
            del self._tail[start - tail :]
            return taken
        taken = bytes(self._head[start:] + self._tail)
        del self._head[start:]
        self._tail.clear()
        return taken

    @property
    def _firm(self) -> int:
        """The offset up to which the text will not change any more, as far as is known."""
        # A form that is too long to be replaced does not hold readers up.
        return self.total if self._form is None or self.total - self._form > FORM + 1 else self._form

    # -- reading -----------------------------------------------------------------------------------------------

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
        head, tail = until_line(head) or until_boundary(head), from_boundary(from_line(tail))
        missing = self.total - len(head) - len(tail)
        marker = f"[... {missing:,} bytes of output not shown ...]\n"
        separator = "" if not head or head.endswith(b"\n") else "\n"
        return head.decode("utf-8", "replace") + separator + marker + tail.decode("utf-8", "replace"), len(head)

    def read(self, after: int, room: int, *, ended: bool) -> tuple[str, int]:
        """The kept text from offset `after` on, at most `room` bytes of it, and the offset to go on from.

        Where bytes between `after` and the tail are gone, a marker stands for them. Unless the stream has `ended`, a
        character whose last bytes have not arrived yet is left for the next read, and a line that is being redrawn is
        shown as it is now, but not passed.
        """
        stop = self.total if ended else self._firm
        after = min(max(after, 0), stop)
        tail = self._tail[-self._tail_room :] if self._tail else bytearray()
        # Without a gap the two are one: a character may begin in the head and end in the tail.
        kept, base = (self._head if self.missing else self._head + tail), 0
        marker = ""
        if after >= len(kept):
            kept, base = tail, self.total - len(tail)
            first = min(self.total - len(from_boundary(bytes(tail))), stop) if after < base else after
            if after < first:
                marker, after = f"\n[... {first - after:,} bytes of output not kept ...]\n", first
        piece = bytes(kept[max(after - base, 0) : max(min(after + room, stop) - base, 0)])
        at_end = after + len(piece) == stop
        whole = piece
        if not (ended and at_end):
            whole = (not at_end and until_line(piece)) or until_boundary(piece)
        if not whole and not base and self.missing:
            whole = piece  # the character goes on in what was lost: show it broken rather than stop here for ever
        text = marker + whole.decode("utf-8", "replace")
        after += len(whole)
        if ended:
            return text, after
        self._shown = max(self._shown, after)
        return text + (self._unfinished(room - len(whole)) if after == stop else ""), after

    def _unfinished(self, room: int) -> str:
        """The line that is being redrawn, as it is now; its end, where it has more than `room` bytes."""
        size = self.total - self._firm
        if not size or room <= 0:
            return ""
        held = bytes(self._tail[-size:] if self.missing else (self._head[-size:] + self._tail)[-size:])
        return from_boundary(until_boundary(held.rstrip(b"\r")[-room:])).decode("utf-8", "replace")

    def last_line(self) -> str:
        """The last non-empty line, for progress messages."""
        kept = self._tail if self.missing else self._head[-2_000:] + self._tail
        recent = bytes(kept[-2_000:]).decode("utf-8", "replace")
        lines = [line.strip() for line in recent.replace("\r", "\n").split("\n")]
        return next((line for line in reversed(lines) if line), "")
