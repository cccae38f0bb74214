"""All peers of a broker: started by their first use, shared by equal entries, ended with their entry or the server."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ...errors import BrokerError
from ...machines import peer as table
from ...process.named import named
from ..config.entries import Entry, Fault, Remote
from .link import Ground
from .peer import Peer
from .sdk import Loader

_LIVE = (table.CONNECTING, table.READY)


def unreachable(target: Remote) -> str:
    """Why a peer of this kind cannot be used."""
    return f"{target.kind} servers cannot be reached in this version, only processes (stdio)"


class Peers:
    """The peers by the identity of their entries. `find` never starts one, nor does `use`: its `connect` does."""

    def __init__(self, ground: Ground, loader: Loader, nursery: trio.Nursery) -> None:
        self._ground = ground
        self._loader = loader
        self._nursery = nursery
        self._peers: dict[object, Peer] = {}
        self._stopping: set[Peer] = set()
        self._leaving = False

    def find(self, entry: Entry) -> Peer | None:
        """The peer of an entry if it was ever used."""
        return self._peers.get(entry.identity)

    def use(self, entry: Entry) -> Peer:
        """The peer of an entry. Raises `BrokerError` for one too many and for a kind that cannot be reached."""
        if self._leaving:
            raise BrokerError("CONNECT_FAILED", f"{entry.name}: the server is going away.", server=entry.name)
        if isinstance(entry.target, Remote):
            raise BrokerError("UNSUPPORTED", f"{entry.name}: {unreachable(entry.target)}.", server=entry.name)
        peer = self._peers.get(entry.identity)
        if peer is None or peer.machine.state not in _LIVE:
            self._check_room(entry)
        if peer is None:
            peer = self._peers[entry.identity] = Peer(entry, self._ground, self._loader, self._nursery)
        return peer

    def keep(self, entries: Iterable[Entry | Fault]) -> None:
        """End the peers of all other entries, without waiting: they were changed or taken out."""
        wanted = {entry.identity for entry in entries if isinstance(entry, Entry)}
        for identity in [identity for identity in self._peers if identity not in wanted]:
            peer = self._peers.pop(identity)
            self._nursery.start_soon(self._stop, peer, name=named(f"ends peer {peer.entry.name!r}"))

    async def shutdown(self) -> None:
        """End all peers at once, in the time that workers get. No other is started any more."""
        self._leaving = True
        for peer in self._stopping:
            peer.hurry()
        async with trio.open_nursery() as nursery:
            for peer in self._peers.values():
                peer.hurry()
                nursery.start_soon(self._stop, peer, name=named(f"ends peer {peer.entry.name!r}"))
        while self._stopping:
            await next(iter(self._stopping)).stop()

    async def _stop(self, peer: Peer) -> None:
        self._stopping.add(peer)
        try:
            await peer.stop()
        finally:
            self._stopping.discard(peer)

    def _check_room(self, entry: Entry) -> None:
        live = sum(peer.machine.state in _LIVE for peer in self._peers.values()) + len(self._stopping)
        if live >= self._ground.limits.peers:
            raise BrokerError(
                "LIMIT_REACHED",
                f"{live} servers are connected and the limit `peers` is {self._ground.limits.peers}; {entry.name} was "
                "not started.",
                server=entry.name,
            )
