"""One call of a tool, from its arguments to its result: what is checked in which order, and what is known afterwards.

Nothing is ever sent twice. A connection that turns out to be dead before the request has left is made anew, once: that
is no second send, because there was no first. Hints of a tool (idempotent, read-only) change nothing about this.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import trio

from ..errors import BrokerError
from ..limits import Limits
from ..store.journal import Journal
from ..store.records import COMPLETED, OUTCOME_UNKNOWN, TOOL_ERROR
from ..values import Origin
from .config.entries import Entry
from .peer.connection import Json, Ticket
from .peer.peer import Peer
from .peer.streams import Progress
from .tools.catalogue import Catalogue, Tool
from .tools.validation import Validation

CONNECT, LIST, CHECK, WAIT, CALL = "connect", "tools/list", "check of the arguments", "wait for a free place", "call"

_ALIKE = 60
"""characters. Longer names are not compared with a name that is not there: the time grows with the square."""
_NOTE = 500
"""characters. Why arguments were not checked."""
_COMPARED = 200
"""names that are. A thousand long ones would hold the loop for a second."""


@dataclass(frozen=True, slots=True)
class Order:
    """A call as it was asked for. `timeout` in seconds, for all of it."""

    tool: str
    arguments: Json
    timeout: float


class Clock:
    """The deadline of one operation. Its error says what the operation was doing when the time was up."""

    def __init__(self, server: str, tool: str | None, timeout: float) -> None:
        self.server = server
        self.tool = tool
        self.timeout = timeout
        self.phase = CONNECT
        self.ticket = Ticket()

    @contextmanager
    def running(self) -> Iterator[None]:
        """The time runs inside. Raises `BrokerError` CALL_TIMEOUT."""
        with trio.move_on_after(self.timeout) as scope:
            yield
        if scope.cancelled_caught:
            what = f"{self.tool} of {self.server}" if self.tool else self.server
            whose = " (timeout=... of the call, else `callTimeout` of the entry)" if self.tool else ""
            raise BrokerError(
                "CALL_TIMEOUT",
                f"{what}: the time limit of {self.timeout:g} s was over during {self.phase}{whose}.",
                sent=self.ticket.sent,
                server=self.server,
                tool=self.tool,
            )


class Calls:
    """Makes calls; one for all brokers. `journal` remembers them."""

    def __init__(self, journal: Journal, validation: Validation, limits: Limits) -> None:
        self.journal = journal
        self._validation = validation
        self._limits = limits

    async def call(self, entry: Entry, peer: Peer, order: Order, origin: Origin) -> Json:
        """Call a tool and return the whole result as the peer sent it, `isError` included.

        Raises `BrokerError`; its `sent` tells what is known. Cancelled, the peer is told, and the journal calls the
        outcome unknown if the request had left.
        """
        clock = Clock(entry.name, order.tool, order.timeout)
        try:
            with clock.running():
                await peer.connect()
                clock.phase = LIST
                catalogue = await peer.catalogue()
                clock.phase = CHECK
                await self._check(catalogue, entry, peer, order, origin)
                clock.phase = WAIT
                async with peer.place():
                    return await self._record(entry, peer, order, origin, clock)
        except BrokerError as error:
            error.server, error.tool = entry.name, order.tool
            if clock.ticket.sent == "no":
                error.sent = "no"  # of the listing, which was sent, nobody has asked
            raise

    async def _check(self, catalogue: Catalogue, entry: Entry, peer: Peer, order: Order, origin: Origin) -> None:
        """Raise `BrokerError` for a tool that is not there and for arguments that do not fit it."""
        try:
            tool = find_tool(catalogue, entry.name, order.tool)
            note = await self._validation.check(tool.schema, order.arguments, entry.name, order.tool)
        except BrokerError as error:
            error.message = peer.redacted(error.message)  # it quotes the peer's names and schema
            raise
        if note:
            origin.progress(f"{entry.name}.{order.tool}: {peer.redacted(note)[:_NOTE]}")

    async def _record(self, entry: Entry, peer: Peer, order: Order, origin: Origin, clock: Clock) -> Json:
        """Send the request between the two entries in the journal."""
        number = await self.journal.begin(origin.run_id, origin.session_id, origin.project, entry.name, order.tool)
        clock.ticket.when_late = lambda is_error: self.journal.finish(number, TOOL_ERROR if is_error else COMPLETED)
        clock.phase = CALL
        params: Json = {"name": order.tool, "arguments": order.arguments}
        try:
            result = await self._send(peer, params, clock, relay(origin, entry.name, order.tool))
        except BrokerError as error:
            if error.sent == "done":
                self.journal.finish(number, TOOL_ERROR if error.code == "PROTOCOL_ERROR" else COMPLETED)
            raise
        else:
            self.journal.finish(number, TOOL_ERROR if result.get("isError") is True else COMPLETED)
            return result
        finally:
            if clock.ticket.sent == "no":
                self.journal.withdraw(number)
            else:
                self.journal.finish(number, OUTCOME_UNKNOWN)  # unless the outcome is known by now

    async def _send(self, peer: Peer, params: Json, clock: Clock, progress: Progress) -> Json:
        try:
            return await (await peer.connect()).ask("tools/call", params, clock.ticket, progress)
        except BrokerError as error:
            if error.code != "PEER_GONE" or error.sent != "no":
                raise
        # It had died unnoticed: nothing has left.
        clock.phase = CONNECT
        connection = await peer.connect()
        clock.phase = CALL
        return await connection.ask("tools/call", params, clock.ticket, progress)


def find_tool(catalogue: Catalogue, server: str, name: str) -> Tool:
    """The tool of this name. Raises `BrokerError` UNKNOWN_TOOL, with near names."""
    tool = catalogue.tools.get(name)
    if tool is None:
        compared = islice((known for known in catalogue.tools if len(known) <= _ALIKE), _COMPARED)
        near = difflib.get_close_matches(name[:_ALIKE], compared, 3, 0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else f"; mcp.list_tools({server!r}) lists its tools."
        broken = " Some of its definitions are malformed: mcp.explain tells which." if catalogue.invalid else ""
        words = f"{server} has no tool {name[:100]!r}{hint}{broken}"
        raise BrokerError("UNKNOWN_TOOL", words, server=server, tool=name)
    return tool


def relay(origin: Origin, server: str, tool: str) -> Progress:
    """What shows the progress of a call in the live view of its run."""

    def told(progress: float, total: float | None, message: str) -> None:
        done = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        origin.progress(f"{server}.{tool}: {done} {message}".rstrip())

    return told
