"""The opening exchange: answered by a small blocking loop, before trio is imported.

`import trio` costs ten times a bare interpreter's start. Initialize, server/discover, tools/list and ping need none of
it: this loop drives the same `Connection` that the runtime drives later. It ends with the first call that needs the
runtime, or with a short quiet after an answer, so that the import is usually over before the first cell comes.
"""

from __future__ import annotations

import os
import select

from ..wire.mcp import Answer, Call

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


def exchange(claim: Claim, connection: Connection, decoder: LineDecoder, limits: Limits) -> Handover | None:
    """Answer the opening exchange. None when the client is already gone: everything it asked has been answered."""
    poll = select.poll()
    poll.register(claim.receive_fd, select.POLLIN)
    answered = False
    while True:
        if answered and not poll.poll(limits.opening_pause * 1000):
            return Handover(None, [])
        try:
            chunk = os.read(claim.receive_fd, _READ)
        except BlockingIOError:
            poll.poll()
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
                if not _write(claim.send_fd, step.line, limits.shutdown_bound):
                    return None
        if not chunk:
            return None


def _write(fd: int, line: bytes, bound: float) -> bool:
    """Write a whole line; False when nobody reads it."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    rest = memoryview(line)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            if not poll.poll(bound * 1000):
                return False
        except OSError:
            return False
    return True
