"""One peer: the single task that owns its connection, and what is known about it while there is none."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import trio

from ...errors import BrokerError
from ...machines import peer as table
from ...process.named import named
from ..config.entries import Entry
from ..tools.catalogue import Catalogue, CatalogueFault, Page, read_all
from .connection import ERROR_WORDS, Client, Connection, negotiate
from .link import Ground, Link, open_stdio_link
from .requests import Requests
from .sdk import Loader

_log = logging.getLogger("repl_trio.broker")

_QUOTING = 10_000
"""characters. Of an error that quotes names and schemas of a peer."""
_FLOOR = 1.0
"""seconds. A catalogue younger than this is believed whatever its peer said: a burst of calls needs one listing."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last really observed of a peer: a state of `machines.peer`, since when (epoch seconds), and why."""

    state: str
    since: float
    reason: str


class Peer:
    """One entry's peer, from its first use to its end. Equal entries share one.

    Nothing is started before the first `connect`. `connect` returns the live connection, which any task may use; the
    connection itself is entered and left by one task of the broker's nursery. A peer that has ended is connected again
    by the next use; nothing is ever sent again.
    """

    def __init__(self, entry: Entry, ground: Ground, loader: Loader, nursery: trio.Nursery, mode: str = "auto") -> None:
        self.entry = entry
        self.machine = table.machine()
        self.seen = Seen(table.IDLE, time.time(), "never connected")
        self.known: Catalogue | None = None
        self._places = trio.CapacityLimiter(ground.limits.peer_calls)
        self._link: Link | None = None
        self._last_stderr = ""  # of the connection before
        self._ground = ground
        self._limits = ground.limits
        self._loader = loader
        self._nursery = nursery
        self._mode = mode
        self._requests = Requests(entry.name, ground.project, ground.client, ground.limits)
        self._connection: Connection | None = None
        self._fault: BrokerError | None = None  # why the last connect failed
        self._retry_at = 0.0  # trio's clock
        self._settled = trio.Event()  # the connect that is on its way has succeeded or failed
        self._over = trio.Event()  # nothing is left of the last connection
        self._over.set()
        self._connecting = trio.CancelScope()
        self._listing = trio.Lock()
        self._listed_at = -math.inf
        self._changes = 0
        self._stopping = False
        self._deadline = 0.0

    # -- use ---------------------------------------------------------------------------------------------------

    async def connect(self) -> Connection:
        """The live connection, made now if there is none. One attempt at a time, whoever asks.

        Raises `BrokerError` CONNECT_FAILED, also when an attempt failed less than `peer_retry` seconds ago.
        """
        while (live := self._live_connection()) is None:
            if self.machine.state in (table.CLOSING, table.CLOSED):
                raise self._error("CONNECT_FAILED", "is being stopped.")
            if self.machine.state == table.CONNECTING:
                await self._settled.wait()
                if self._fault is not None:
                    raise _again(self._fault)
                continue
            if not self._over.is_set():
                await self._over.wait()  # what is left of the last one could be in the way of the next
                continue
            left = self._retry_at - trio.current_time()
            if self._fault is not None and left > 0:
                # On a line of its own: the words before it may be the peer's, without a full stop.
                hint = f"\nIt is not tried again for {left:.0f} s; after mcp.refresh({self.entry.name!r}) it is."
                raise _again(self._fault, hint)
            self._move("use", "connecting")
            self._fault = None
            self._settled, self._over = trio.Event(), trio.Event()
            self._nursery.start_soon(self._own, name=named(f"owns peer {self.entry.name!r}"))
        return live

    def _live_connection(self) -> Connection | None:
        """The connection, if it can be used as far as anybody knows."""
        live = self._connection
        return live if live is not None and live.link.usable else None

    async def catalogue(self) -> Catalogue:
        """The peer's tools, listed now unless they are known and fresh. Raises `BrokerError`."""
        connection = await self.connect()
        if (known := self._believed()) is not None:
            return known  # without a look at the lock, which would be a scheduler step in each call
        async with self._listing:
            if (known := self._believed()) is not None:
                return known
            changes, begun = self._changes, trio.current_time()
            with trio.move_on_after(self._limits.peer_list):
                self.known = await self._listed(connection)
                self._listed_at = begun
                if changes != self._changes:
                    self.forget_catalogue()  # it changed while it was being read
                return self.known
        raise self._error(
            "CATALOGUE_FAULT", f"did not list its tools (tools/list) in {self._limits.peer_list:g} s (limit peer_list)."
        )

    async def _listed(self, connection: Connection) -> Catalogue:
        try:
            return await read_all(partial(_page, connection), self._limits)
        except CatalogueFault as error:
            error.message = self.redacted(error.message)  # it quotes the peer's names
            raise

    def redacted(self, words: str) -> str:
        """Words that quote what the peer has sent, without the configuration's secrets."""
        return self._ground.redaction.head(words, _QUOTING)

    def _believed(self) -> Catalogue | None:
        """The known tools if they may still be believed."""
        if self.known is not None and (self.known.fresh or self._listed_at > trio.current_time() - _FLOOR):
            return self.known
        return None

    def forget_failure(self) -> None:
        """Let the next use connect at once, and list the tools anew."""
        self._fault = None
        self.forget_catalogue()

    def forget_catalogue(self) -> None:
        """Believe the known tools no longer."""
        self._changes += 1
        self._listed_at = -math.inf
        if self.known is not None:
            self.known.drop()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """One of the places for requests to this peer, waited for when all are taken."""
        try:
            self._places.acquire_nowait()
        except trio.WouldBlock:
            await self._places.acquire()
        try:
            yield
        finally:
            self._places.release()

    def about(self) -> dict[str, object]:
        """What the peer says it is, and its process; empty while it is not connected."""
        live = self._connection
        if live is None:
            return {}
        return {"version": live.version, "program": live.about, "pid": live.link.guard.child_pid, "asks": live.asked()}

    def stderr(self) -> str:
        """The end of what its process wrote to stderr, also when that has ended; redacted."""
        # What was kept may hold what is a secret only since then.
        return self._link.stderr() if self._link is not None else self._ground.redaction.text(self._last_stderr)

    # -- the end -----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End the peer for good, in order; returns when nothing of it is left."""
        self._move("stop", "stopped")
        self._stopping = True
        self._connecting.cancel()
        if self._link is not None:
            self._link.leave()
        await self._over.wait()
        if self.machine.accepts("gone"):
            self._move("gone", "stopped")

    def hurry(self) -> None:
        """The server is ending: what is being stopped gets less time."""
        if self._link is not None:
            self._link.hurry()

    # -- the owner ---------------------------------------------------------------------------------------------

    async def _own(self) -> None:
        """The task of one connection, from its start to its last trace."""
        self._deadline = trio.current_time() + self._patience
        try:
            if await self._live() and not self._stopping:
                # Some servers end themselves at any first request but `initialize`.
                self._mode = "legacy"
                await self._live()
        except Exception:  # noqa: BLE001 - the owner's boundary: a bug with one peer must not end the server
            told = self._ground.redaction.text(traceback.format_exc())
            _log.error("bug in the connection to %s\n%s", self.entry.name, told)
            self._failed(self._error("CONNECT_FAILED", "could not be used because of a bug in repl-trio."))
        finally:
            if self._link is not None:
                self._last_stderr = self._link.stderr()
            self._connection = self._link = None
            self._settled.set()
            self._over.set()

    async def _live(self) -> bool:
        """Connect and stay connected. True when the peer ended itself over the question which era it is of."""
        try:
            async with open_stdio_link(self.entry, self._ground) as link:
                self._link = link
                if self._stopping:
                    link.leave()
                return await self._hold(link)
        except BrokerError as error:
            self._failed(error)
        except OSError as error:
            self._failed(self._error("CONNECT_FAILED", f"could not be started ({error})."))
        return False

    async def _hold(self, link: Link) -> bool:
        """Enter the SDK client, wait for the end of the connection, leave it: one task, as that client needs it."""
        client, words = None, ""
        with self._patient():
            try:
                client = Client(await self._loader.load(), link, self._requests)
            except (ImportError, RuntimeError) as error:
                # A broken installation; or no thread, because the user's processes are at their bound.
                words = f"could not be reached, because the MCP SDK could not be loaded ({error})."
        if client is None:
            self._failed(self._error("CONNECT_FAILED", words) if words else self._late(link))
            return False
        async with client.session:
            fault = await self._handshake(client)
            if fault is None:
                await self._serve(Connection(self.entry.name, client, self._ground.redaction, self._limits))
            elif self._mode == "auto" and link.guard.exited.is_set() and link.guard.error is None:
                return True
            else:
                self._failed(fault)
        return False

    async def _handshake(self, client: Client) -> BrokerError | None:
        """Why the peer is not connected; None when it is."""
        link = client.link
        with self._patient():
            try:
                await negotiate(client, self._mode, self._limits.peer_probe)
            except client.sdk.MCPError as error:
                words = f"refused the handshake with the error {error.code}: {error.message}."
            except RuntimeError as error:
                words = f"and repl-trio share no protocol version ({error})."
            except ValueError:
                words = "answered the handshake with something malformed."
            else:
                words = ""
            await link.settled()
            if link.over.is_set():
                words = f"{link.why or 'was stopped'} before it was connected."
            if not words:
                return None
            words = self._ground.redaction.head(words, ERROR_WORDS)
            return self._error("CONNECT_FAILED", f"{words} {link.said()}".strip())
        return self._late(link)

    async def _serve(self, connection: Connection) -> None:
        """Be connected until the link is over."""
        connection.inbound.changed = self._changed
        self._connection, self._fault = connection, None
        self._move("connected", "")
        self._settled.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                _follow_changes, connection, name=named(f"follows the changes of peer {self.entry.name!r}")
            )
            await connection.link.over.wait()
            self._connection = None
            if self.machine.accepts("lost"):
                self._move("lost", f"{connection.link.why or 'stopped'}. {connection.link.said()}".strip())
            nursery.cancel_scope.cancel()

    def _changed(self, method: str) -> None:
        if method == "notifications/tools/list_changed":
            self.forget_catalogue()

    # -- words and states --------------------------------------------------------------------------------------

    @property
    def _patience(self) -> float:
        return self.entry.connect_timeout or self._limits.peer_connect

    def _patient(self) -> trio.CancelScope:
        """A scope that ends at the connect's deadline, or with `stop`."""
        self._connecting = trio.CancelScope(deadline=self._deadline)
        if self._stopping:
            self._connecting.cancel()
        return self._connecting

    def _late(self, link: Link) -> BrokerError:
        if self._stopping:
            return self._error("CONNECT_FAILED", "was stopped before it was connected.")
        whose = "its own connect timeout" if self.entry.connect_timeout else "limit peer_connect"
        words = f"did not finish its handshake (connect) in {self._patience:g} s ({whose})."
        return self._error("CONNECT_FAILED", f"{words} {link.said()}".strip())

    def _failed(self, fault: BrokerError) -> None:
        self._fault = fault
        self._retry_at = trio.current_time() + self._limits.peer_retry
        # `lost`: a bug ended a connection that was up. Left as ready, it would be neither used nor made anew.
        for event in ("failed", "lost"):
            if self.machine.accepts(event):
                self._move(event, fault.message)
                break

    def _move(self, event: str, reason: str) -> None:
        before = self.machine.state
        if self.machine.advance(event) != before:
            self.seen = Seen(self.machine.state, time.time(), reason)

    def _error(self, code: str, words: str) -> BrokerError:
        return BrokerError(code, f"{self.entry.name} {words}", server=self.entry.name)


def _again(fault: BrokerError, hint: str = "") -> BrokerError:
    """The same fault for one more caller: an exception that several tasks raise would collect their tracebacks."""
    return BrokerError(fault.code, fault.message + hint, sent=fault.sent, server=fault.server, tool=fault.tool)


async def _page(connection: Connection, cursor: str | None) -> Page:
    result = await connection.request("tools/list", {} if cursor is None else {"cursor": cursor})
    return Page(result.get("tools"), result.get("nextCursor"), result.get("ttlMs"))


async def _follow_changes(connection: Connection) -> None:
    """In the modern era changes are told to those who ask: one request that stays open as long as the connection."""
    tools = connection.capabilities.get("tools")
    if connection.modern and isinstance(tools, dict) and tools.get("listChanged"):
        with suppress(BrokerError):  # it does not want to tell: the catalogue's time runs out all the same
            await connection.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
