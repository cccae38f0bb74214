"""A project folder with fixture peers as real processes, and a broker for it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from repl_trio.broker.reach import Reach, open_reach
from repl_trio.errors import BrokerError
from repl_trio.limits import Limits
from repl_trio.process.launch import Root
from repl_trio.process.root import open_root
from repl_trio.settings import Settings
from repl_trio.values import Origin
from tests.process.peer_stage import HANG, PROGRAM, alive


class Project:
    """A project folder with fixture peers, and a broker for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.reach: Reach
        self.entries: dict[str, dict[str, Any]] = {}

    def add(self, name: str, *options: str, **fields: Any) -> None:
        """Write an entry to the project's file."""
        args = [PROGRAM, "--log", str(self.folder / f"{name}.log"), *options]
        self.entries[name] = {"command": sys.executable, "args": args, **fields}
        self.write()

    def write(self) -> None:
        (self.folder / ".mcp.json").write_text(json.dumps({"mcpServers": self.entries}))

    async def ask(self, op: str, **params: Any) -> Any:
        origin = Origin("r1", "s1", str(self.folder), self.lines.append)
        return await self.reach.perform(op, params, origin)

    async def call(self, server: str, tool: str, **arguments: Any) -> Any:
        return await self.ask("call", server=server, tool=tool, arguments=arguments)

    async def refused(self, code: str, words: str, op: str = "call", **params: Any) -> BrokerError:
        """The error with which an operation must fail."""
        with pytest.raises(BrokerError, match=f"(?s){words}") as got:
            await self.ask(op, **params)
        assert got.value.code == code
        return got.value

    async def journal(self) -> list[tuple[str, str]]:
        return [(record["tool"], record["status"]) for record in await self.ask("journal")]

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something about the broker holds that nothing announces."""
        with trio.fail_after(HANG / 2):
            while not await holds():  # noqa: ASYNC110 - see above
                await trio.sleep(0.01)

    async def lost(self, server: str) -> bool:
        return bool((await self.state(server))["state"] != "ready")

    async def state(self, server: str) -> dict[str, Any]:
        listed = (await self.ask("servers"))["servers"]
        return next(one for one in listed if one["name"] == server)

    def logged(self, server: str, key: str) -> list[Any]:
        log = self.folder / f"{server}.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [entry[key] for entry in map(json.loads, lines) if key in entry]

    def pid(self, server: str) -> int:
        return int(self.logged(server, "started")[-1])


@asynccontextmanager
async def open_project(folder: Path, *, journal: str | None = None, **limits: str) -> AsyncIterator[Project]:
    settings = Settings("serve")
    settings.project = str(folder)
    settings.journal = journal
    settings.limits = Limits.overridden(limits)
    project = Project(folder)
    with trio.fail_after(HANG):
        async with open_root(Root(), settings.limits) as watch, open_reach(settings, watch) as project.reach:
            yield project
    assert alive(str(folder)) == []
