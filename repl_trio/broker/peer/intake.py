"""What a peer writes to stdout, as messages: bytes are counted before anything is parsed. Sans-IO.

Peers print banners, logs and blank lines where only messages belong. What does not look like a message is skipped,
counted and remembered by its first characters, so that an error can quote it; see `Intake.junk`.
"""

from __future__ import annotations

import gc

from ...limits import Limits
from ...wire import jsontext

Message = dict[str, object]

_SPACE = b" \t\r\n\xef\xbb\xbf"  # and a byte order mark, which some programs write first
_EDGE = 400
"""bytes. The beginning and the end of a line that is too long; its id stands in one of them."""
_BATCH = 256
"""messages of one batch; a longer one is junk. They are all handed over in one step."""
_LARGE = 65_536
"""bytes. A longer line is parsed with the garbage collector off: it would walk what is being made again and again, and
a million lists would take over a second instead of a tenth."""
_QUOTED = 4_096
"""bytes. What is kept of the first junk: more than is ever quoted, so that a secret across the cut is still found."""


class Damaged:
    """An answer that cannot be used. `id` is that of the request it answers, `code` and `reason` are for its caller."""

    __slots__ = ("code", "id", "reason")

    def __init__(self, number: int | str, code: str, reason: str) -> None:
        self.id = number
        self.code = code
        self.reason = reason


class Intake:
    """The messages in a stream of lines that arrives in any chunking.

    A message is a dict with `method` (and `id` for a request) or with `id` and `result` or `error`; all of these have
    their right types. `junk` holds the first stray bytes, `stray` counts those since the last message; once it was over
    its limit, `flooded` is set and nothing is found any more.
    """

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.peer_message_bytes
        self._held = bytearray()  # of a line that may be a message
        self._size = 0  # of the line so far
        self._kind = ""  # of the line so far: "", "message", "junk", "oversized"
        self._tail = b""  # the last bytes of an oversized line
        self.junk = bytearray()
        self.stray = 0
        self.flooded = False
        self._most = limits.peer_junk_bytes

    def feed(self, chunk: bytes) -> list[Message | Damaged]:
        """What `chunk` completed, in order."""
        found: list[Message | Damaged] = []
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            self._take(piece)
            self._end(found)
        self._take(pieces[-1])
        return found

    def finish(self) -> list[Message | Damaged]:
        """What is left at the end of the stream: a last line without its newline counts."""
        found: list[Message | Damaged] = []
        self._end(found)
        return found

    def _take(self, piece: bytes) -> None:
        if not self._kind:
            piece = piece.lstrip(_SPACE)
            if not piece:
                return
            self._kind = "message" if piece[:1] in b"{[" else "junk"
        self._size += len(piece)
        if self._kind == "junk":
            self._note(piece)
        elif self._kind == "message":
            self._held += piece
            if self._size > self._limit:
                self._kind = "oversized"
                self._tail = bytes(self._held[-_EDGE:])
                del self._held[_EDGE:]
        else:
            self._tail = (self._tail + piece)[-_EDGE:]

    def _end(self, found: list[Message | Damaged]) -> None:
        kind, size, line, tail = self._kind, self._size, bytes(self._held), self._tail
        self._held.clear()
        self._kind, self._size, self._tail = "", 0, b""
        if self.flooded:
            return
        if kind == "message":
            self._message(line, found)
        elif kind == "junk":
            self._note(b"\n")
        elif kind == "oversized":
            reason = f"its answer has {size} bytes; the limit peer_message_bytes is {self._limit}"
            number = _number_at_edges(line, tail)
            if number is None:
                self._note(line + b"\n")
            else:
                found.append(Damaged(number, "LIMIT_REACHED", reason))

    def _message(self, line: bytes, found: list[Message | Damaged]) -> None:
        try:
            value = _parsed(line)
        except UnicodeDecodeError:
            return self._broken(line, "its answer is not UTF-8", found)
        except jsontext.NotJSON as error:
            return self._broken(line, f"its answer is not JSON ({error})", found)
        # Batches are of one protocol version and were taken out of the next; some servers still send them.
        messages = value if type(value) is list else [value]
        checked = [_checked(message) for message in messages] if len(messages) <= _BATCH else []
        usable = [message for message in checked if message is not None]
        found += usable
        if usable:
            self.stray = 0
        else:
            self._note(line + b"\n")  # once for all of a batch: each time would copy the whole line
        return None

    def _broken(self, line: bytes, reason: str, found: list[Message | Damaged]) -> None:
        """A line that begins like a message: its caller need not wait until the call times out."""
        number = _number_at_edges(line[:_EDGE], line[-_EDGE:])
        if number is None:
            self._note(line + b"\n")
        else:
            found.append(Damaged(number, "PROTOCOL_ERROR", reason))

    def _note(self, piece: bytes) -> None:
        self.stray += len(piece)
        self.flooded = self.flooded or self.stray > self._most
        if len(self.junk) < _QUOTED:
            self.junk += piece[: _QUOTED - len(self.junk)]


def _parsed(line: bytes) -> object:
    """The JSON value of a line. Raises `UnicodeDecodeError` and `NotJSON`."""
    text = line.decode("utf-8")
    if len(line) <= _LARGE or not gc.isenabled():
        return jsontext.loads(text)
    gc.disable()
    try:
        return jsontext.loads(text)
    finally:
        gc.enable()


def _checked(message: object) -> Message | Damaged | None:
    """The message with the types that its readers count on; None for what is none."""
    if type(message) is not dict or message.get("jsonrpc") != "2.0":
        return None
    number, method = message.get("id"), message.get("method")
    if "id" in message and type(number) not in (int, str):
        return None
    if "method" in message:
        params = message.get("params")
        return message if type(method) is str and (params is None or type(params) is dict) else None
    if type(number) is not int and type(number) is not str:
        return None
    if type(message.get("result")) is dict:
        return message
    if "result" in message:
        return Damaged(number, "PROTOCOL_ERROR", "the result of its answer is no object")
    error = message.get("error")
    if type(error) is not dict or type(error.get("code")) is not int or type(error.get("message")) is not str:
        return Damaged(number, "PROTOCOL_ERROR", "its answer has neither a result nor a proper error")
    return message


def _number_at_edges(head: bytes, tail: bytes) -> int | None:
    """The id of an answer of which only the ends are known: `"id":7` first or last, where programs write it.

    Inside a result there may be any number of ids: only one among the plain members at either end is the answer's.
    """
    if b'"method"' in head.partition(b'"params"')[0]:
        return None
    for outcome in (b'"result"', b'"error"'):
        before, found, _ = head.partition(outcome)
        if found and (number := _number_in(before)) is not None:
            return number
    *_, members, after = b"", *tail.split(b"}")
    return _number_in(members) if not after.strip() else None


def _number_in(part: bytes) -> int | None:
    place = part.rfind(b'"id"')
    if place < 0:
        return None
    rest = part[place + 4 :].lstrip()
    if not rest.startswith(b":"):
        return None
    token = rest[1:].split(b",")[0].strip()
    if token.isdigit() and len(token) < 19:
        return int(token)
    return None
