"""The broker of one project: answers what cells ask of its peers (`docs/wire.md` names the operations)."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable
from functools import partial

from ..errors import BrokerError
from ..values import Origin
from ..wire.jsonrpc import METHOD_NOT_FOUND
from . import explain
from .calls import LIST, Calls, Clock, Order, find_tool
from .config.entries import Entry, Snapshot
from .config.registry import Registry
from .grants import decide, granted
from .peer.connection import Connection, Json, Refused
from .peer.link import Ground
from .peer.peer import Peer
from .peer.peers import Peers
from .tools.catalogue import Catalogue, Page, read_pages, search

_log = logging.getLogger("repl_trio.broker")

_TRACEBACK = 20_000
"""characters of one in the log."""


class Broker:
    """The peers of one project."""

    def __init__(self, project: str, registry: Registry, peers: Peers, calls: Calls, ground: Ground) -> None:
        self.peers = peers
        self._project = project
        self._registry = registry
        self._calls = calls
        self._redaction = ground.redaction
        self._limits = ground.limits
        self._version = -1

    def snapshot(self) -> Snapshot:
        """The registry as its files are now. Peers whose entry has changed are ended, new secrets are secret."""
        snapshot = self._registry.look()
        if snapshot.version != self._version:
            self._version = snapshot.version
            self._redaction.add(snapshot.secrets)
            self.peers.keep(snapshot.entries.values())
        return snapshot

    def known(self, snapshot: Snapshot) -> dict[str, Peer | None]:
        """The peers that were used, by the names of their entries."""
        return {name: self.peers.find(entry) for name, entry in snapshot.entries.items() if isinstance(entry, Entry)}

    async def perform(self, op: str, params: Json, origin: Origin) -> object:
        """The JSON value that answers one operation. Raises `BrokerError`."""
        operations: dict[str, Callable[[Json, Origin], Awaitable[object]]] = {
            "call": self.call,
            "tools": self.tools,
            "servers": self.servers,
            "refresh": self.refresh,
            "explain": self.explain,
            "search": self.search,
            "help": self.help,
            "resources": self.resources,
            "prompts": self.prompts,
            "read_resource": self.read_resource,
            "get_prompt": self.get_prompt,
        }
        if op not in operations:
            raise BrokerError("UNSUPPORTED", f"There is no operation {op[:80]!r}.")
        try:
            return await operations[op](params, origin)
        except BrokerError:
            raise
        except Exception:  # noqa: BLE001 - the last place that can take secrets out of what a bug says
            told = self._redaction.head(traceback.format_exc(), _TRACEBACK)
            _log.error("bug in the operation %s of run %s\n%s", op, origin.run_id, told)
        raise BrokerError("INTERNAL_ERROR", "A bug in repl-trio, see its log", sent="unknown")

    async def call(self, params: Json, origin: Origin) -> object:
        """The whole result of one call of a tool."""
        server, tool = _text(params, "server"), _text(params, "tool")
        arguments = params.get("arguments")
        entry = granted(self.snapshot(), server, tool)
        if type(arguments) is not dict:
            raise BrokerError("BAD_ARGUMENTS", "arguments is no object.", server=server, tool=tool)
        order = Order(tool, arguments, self._timeout(entry, params.get("timeout")))
        return await self._calls.call(entry, self.peers.use(entry), order, origin)

    async def tools(self, params: Json, _origin: Origin) -> object:
        """The tools of a peer that may be called, as it defines them."""
        entry, clock = self._entry(params)
        with clock.running():
            catalogue = await self._catalogue(entry, clock)
        allowed = explain.granted_tools(self.snapshot(), entry.name, catalogue)
        note = explain.hidden(entry.name, allowed, catalogue)
        return {"tools": [dict(tool.definition) for tool in allowed], "invalid": list(catalogue.invalid), "note": note}

    async def servers(self, _params: Json, _origin: Origin) -> object:
        """Every entry and its state. Starts nothing."""
        snapshot = self.snapshot()
        return {
            "servers": explain.listed(snapshot, self.known(snapshot)),
            "note": explain.note(snapshot, self._project),
        }

    async def refresh(self, params: Json, origin: Origin) -> object:
        """Read the registry anew, forget failures and catalogues; then as `servers`. A named server must exist."""
        server = _text_or_none(params, "server")
        self._registry.refresh()
        snapshot = self.snapshot()
        if server is not None and server not in snapshot.entries:
            granted(snapshot, server)
        for name, peer in self.known(snapshot).items():
            if peer is not None and server in (None, name):
                peer.forget_failure()
        return await self.servers(params, origin)

    async def explain(self, params: Json, _origin: Origin) -> object:
        """What is known about an entry or a tool. Starts nothing."""
        server, tool = _text(params, "server"), _text_or_none(params, "tool")
        snapshot = self.snapshot()
        return explain.explained(snapshot, server, tool, self.known(snapshot).get(server))

    async def search(self, params: Json, _origin: Origin) -> object:
        """The tools of known catalogues that mention all the words; `note` names what was not looked through."""
        snapshot = self.snapshot()
        catalogues = {name: peer.known for name, peer in self.known(snapshot).items() if peer and peer.known}
        found = search(_text(params, "words"), catalogues, self._limits)
        allowed = [match for match in found if decide(snapshot, match.server, match.tool).allowed]
        return {
            "matches": [{"server": match.server, "tool": match.tool, "line": match.line} for match in allowed],
            "note": explain.unsearched(snapshot, catalogues),
        }

    async def help(self, params: Json, _origin: Origin) -> object:
        """Text about the servers, a server or a tool."""
        server, name = _text_or_none(params, "server"), _text_or_none(params, "tool")
        snapshot = self.snapshot()
        if server is None:
            return explain.overview(snapshot, self.known(snapshot), self._project)
        entry, clock = self._entry(params)
        with clock.running():
            catalogue = await self._catalogue(entry, clock)
            connection = await self.peers.use(entry).connect()
        if name is not None:
            granted(snapshot, server, name)
            return explain.tool_text(server, find_tool(catalogue, server, name))
        allowed = explain.granted_tools(snapshot, server, catalogue)
        return explain.tools_text(server, allowed, catalogue, connection.instructions)

    async def resources(self, params: Json, _origin: Origin) -> object:
        """The resources of a peer and its templates."""
        return {
            "resources": await self._list(params, "resources/list", "resources"),
            "templates": await self._list(params, "resources/templates/list", "resourceTemplates"),
        }

    async def prompts(self, params: Json, _origin: Origin) -> object:
        """The prompts of a peer."""
        return await self._list(params, "prompts/list", "prompts")

    async def read_resource(self, params: Json, _origin: Origin) -> object:
        """The whole result of reading a resource."""
        hint = "mcp.list_resources({!r}) tells its resources and, in .templates, addresses to be completed"
        return await self._ask(params, "resources/read", {"uri": _text(params, "uri")}, hint)

    async def get_prompt(self, params: Json, _origin: Origin) -> object:
        """The whole result of getting a prompt."""
        arguments = params.get("arguments") or {}
        if type(arguments) is not dict:
            raise BrokerError("BAD_ARGUMENTS", "arguments is no object.")
        hint = "mcp.list_prompts({!r}) tells its prompts and their arguments"
        return await self._ask(params, "prompts/get", {"name": _text(params, "name"), "arguments": arguments}, hint)

    async def _catalogue(self, entry: Entry, clock: Clock) -> Catalogue:
        peer = self.peers.use(entry)
        await peer.connect()
        clock.phase = LIST
        return await peer.catalogue()

    async def _ask(self, params: Json, method: str, asked: Json, hint: str) -> Json:
        """One question that changes nothing, so the journal does not hear of it. `hint` goes with a refusal."""
        entry, clock = self._entry(params)
        with clock.running():
            peer = self.peers.use(entry)
            connection = await peer.connect()
            clock.phase = method
            async with peer.place():
                try:
                    return await connection.ask(method, asked, clock.ticket)
                except Refused as error:
                    # Peers tell little about it, some only that something went wrong.
                    words = f"{error.message.rstrip('.')}; {hint.format(entry.name)}"
                    raise Refused(words, error.number, entry.name) from None
        raise AssertionError("the clock raises")

    async def _list(self, params: Json, method: str, what: str) -> list[object]:
        entry, clock = self._entry(params)
        with clock.running():
            connection = await self.peers.use(entry).connect()
            clock.phase = method
            offered = connection.capabilities.get("prompts" if what == "prompts" else "resources")
            if offered is None:
                return []
            try:
                return (await read_pages(partial(_page, connection, method, what), self._limits, what)).items
            except Refused as error:
                if error.number != METHOD_NOT_FOUND:
                    raise
                # A peer may offer resources and know nothing of templates.
                return []
            except BrokerError as error:
                error.message = self._redaction.text(error.message)  # it may quote the peer's names
                raise
        raise AssertionError("the clock raises")

    def _entry(self, params: Json) -> tuple[Entry, Clock]:
        server = _text(params, "server")
        entry = granted(self.snapshot(), server)
        return entry, Clock(server, None, self._timeout(entry, params.get("timeout")))

    def _timeout(self, entry: Entry, asked: object) -> float:
        if asked is None:
            return entry.call_timeout or self._limits.peer_call
        low, high = self._limits.timeout_min, self._limits.timeout_max
        if type(asked) not in (int, float) or not low <= asked <= high:  # type: ignore[operator]
            raise BrokerError("BAD_ARGUMENTS", f"timeout is no number from {low:g} to {high:g}.", server=entry.name)
        return float(asked)  # type: ignore[arg-type]


async def _page(connection: Connection, method: str, what: str, cursor: str | None) -> Page:
    result = await connection.request(method, {} if cursor is None else {"cursor": cursor})
    return Page(result.get(what), result.get("nextCursor"), result.get("ttlMs"))


def _text(params: Json, name: str) -> str:
    value = params.get(name)
    if type(value) is not str:
        raise BrokerError("BAD_ARGUMENTS", f"{name} is no string.")
    return value


def _text_or_none(params: Json, name: str) -> str | None:
    return None if params.get(name) is None else _text(params, name)
