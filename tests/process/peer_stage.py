"""Fixture peers as real processes, connected by the broker's own parts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import trio

from repl_trio.broker.config.entries import Entry, Stdio
from repl_trio.broker.peer.connection import Json, Ticket
from repl_trio.broker.peer.link import Ground
from repl_trio.broker.peer.peer import Peer
from repl_trio.broker.peer.sdk import Loader
from repl_trio.broker.redaction import Redaction
from repl_trio.limits import Limits
from repl_trio.process.launch import Root
from repl_trio.process.root import open_root

PROGRAM = str(Path(__file__).resolve().parents[1] / "peers" / "peer.py")
HANG = 60.0


class Stage:
    """A ground for peers in `folder`, with a nursery that ends with it."""

    def __init__(self, ground: Ground, nursery: trio.Nursery, folder: Path) -> None:
        self.ground = ground
        self.nursery = nursery
        self.folder = folder
        self.loader = Loader()
        self.log = folder / "log"
        self.made: list[Peer] = []

    def entry(self, *options: str, env: dict[str, str] | None = None, patience: float | None = None) -> Entry:
        target = Stdio(
            sys.executable, (PROGRAM, "--log", str(self.log), *options), tuple((env or {}).items()), str(self.folder)
        )
        return Entry("fixture", "project", target, connect_timeout=patience)

    def peer(self, *options: str, mode: str = "auto", **entry: Any) -> Peer:
        """A fixture peer with these options of its program, not started yet."""
        return self.of(self.entry(*options, **entry), mode)

    def of(self, entry: Entry, mode: str = "auto") -> Peer:
        peer = Peer(entry, self.ground, self.loader, self.nursery, mode)
        self.made.append(peer)
        return peer

    def logged(self, key: str) -> list[Any]:
        """What the peers have noted under a key, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [entry[key] for entry in map(json.loads, lines) if key in entry]


@asynccontextmanager
async def open_stage(folder: Path, **limits: str) -> AsyncIterator[Stage]:
    """Peers made on it are stopped when it ends, and everything is bounded."""
    bounds = Limits.overridden({"peer_grace": "5", "peer_kill": "5", **limits})
    with trio.fail_after(HANG):
        async with open_root(Root(), bounds) as watch, trio.open_nursery() as nursery:
            ground = Ground(watch, dict(os.environ), str(folder), bounds, Redaction())
            stage = Stage(ground, nursery, folder)
            yield stage
            for peer in stage.made:
                nursery.start_soon(peer.stop)


async def call(peer: Peer, tool: str, ticket: Ticket | None = None, **arguments: object) -> Json:
    """One call of a tool, whole result."""
    connection = await peer.connect()
    return await connection.ask("tools/call", {"name": tool, "arguments": arguments}, ticket)


async def text(peer: Peer, tool: str, **arguments: object) -> str:
    result = await call(peer, tool, None, **arguments)
    content: Any = result["content"]
    return str(content[0]["text"])


async def about(peer: Peer) -> dict[str, Any]:
    """What the peer knows about its own process."""
    told: Any = (await call(peer, "whoami"))["structuredContent"]
    return dict(told)


async def eventually(condition: Callable[[], object], what: str) -> None:
    """Return when the condition holds: for what another process does."""
    with trio.move_on_after(HANG / 2):
        while not condition():  # noqa: ASYNC110 - nothing in this process announces it
            await trio.sleep(0.005)
        return
    raise AssertionError(f"never happened: {what}")


def alive(tag: str) -> list[psutil.Process]:
    """The processes that carry the tag in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if tag in " ".join(process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found
