"""The opening exchange: answered by a small blocking loop, before trio is imported.

`import trio` costs ten times a bare interpreter's start. Initialize, server/discover, tools/list and ping need none of
it: this loop drives the same `Connection` that the runtime drives later. It ends with the first call that needs the
runtime, or with a short quiet after an answer, so that the import is usually over before the first cell comes.
"""

from __future__ import annotations

import os
import select

from ..wire.mcp import Answer, Call
from .ending import CLOSED_STDIN, READS_NO_MORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..limits import Limits
    from ..process.stdio import Claim
    from ..wire.framing import LineDecoder, Oversized
    from ..wire.mcp import Connection

_READ = 65_536


class Handover:
    """What the runtime goes on with: the first call, if one ended the opening, and the lines read behind it."""

    __slots__ = ("call", "lines")

    def __init__(self, call: Call | None, lines: list[bytes | Oversized]) -> None:
        self.call = call
        self.lines = lines


class Link:
    """The client's connection as the opening exchange leaves it to the runtime."""

    __slots__ = ("connection", "decoder", "handover", "pipes")

    def __init__(self, pipes: Claim, connection: Connection, decoder: LineDecoder, handover: Handover) -> None:
        self.pipes = pipes
        self.connection = connection
        self.decoder = decoder
        self.handover = handover


def exchange(
    claim: Claim, connection: Connection, decoder: LineDecoder, limits: Limits, wake: int | None = None
) -> Handover | str:
    """Answer the opening exchange. A string says why the client needs no more: what it asked has been answered.

    `wake`: a descriptor that becomes readable when the server is told to end; the string is then empty.
    """
    poll = _poll(wake, claim.receive_fd, select.POLLIN)
    answered = False
    while True:
        if answered and not poll.poll(limits.opening_pause * 1000):
            return Handover(None, [])
        try:
            chunk = os.read(claim.receive_fd, _READ)
        except BlockingIOError:
            if any(fd == wake for fd, _ in poll.poll()):
                return ""
            continue
        except OSError:
            chunk = b""
        lines = decoder.feed(chunk) if chunk else decoder.finish()
        while lines:
            step = connection.receive(lines.pop(0))
            if isinstance(step, Call):
                return Handover(step, lines)
            if isinstance(step, Answer):
                answered = True
                if not _write(claim.send_fd, step.line, limits.shutdown_bound, wake):
                    return READS_NO_MORE
        if not chunk:
            return CLOSED_STDIN


def _write(fd: int, line: bytes, bound: float, wake: int | None) -> bool:
    """Write a whole line; False when nobody reads it, or when the server is told to end meanwhile."""
    poll = _poll(wake, fd, select.POLLOUT)
    rest = memoryview(line)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            ready = poll.poll(bound * 1000)
            if not ready or any(found == wake for found, _ in ready):
                return False
        except OSError:
            return False
    return True


def _poll(wake: int | None, fd: int, event: int) -> select.poll:
    poll = select.poll()
    poll.register(fd, event)
    if wake is not None:
        poll.register(wake, select.POLLIN)
    return poll
