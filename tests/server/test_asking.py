"""Requests to the client, over a pipe that the test reads or leaves unread."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from repl_trio.limits import Limits
from repl_trio.process.pipes import PipeWriter
from repl_trio.server.asking import Asking
from repl_trio.server.tools import implementation
from repl_trio.wire.jsonrpc import Response
from repl_trio.wire.mcp import Connection

HANG = 20.0
METHOD = "sampling/createMessage"


class Wire:
    """A client that offers sampling, and our end of its pipe."""

    def __init__(self, fd: int, asking: Asking, writer: PipeWriter, connection: Connection) -> None:
        self.fd = fd
        self.asking = asking
        self.writer = writer
        self.connection = connection
        self._held = b""

    async def message(self) -> Any:
        """The next line."""
        while b"\n" not in self._held:
            await trio.lowlevel.wait_readable(self.fd)
            self._held += os.read(self.fd, 65_536)
        line, _, self._held = self._held.partition(b"\n")
        return json.loads(line)

    def reply(self, number: str, result: dict[str, Any]) -> None:
        step = self.connection.receive(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode())
        assert isinstance(step, Response)
        self.asking.take(step)


@asynccontextmanager
async def open_wire(**limits: str) -> AsyncIterator[Wire]:
    bounds = Limits.overridden(limits)
    connection = Connection(implementation(bounds), bounds.request_bytes)
    params = {"protocolVersion": "2025-11-25", "capabilities": {"sampling": {}}}
    connection.receive(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode())
    receive, send = os.pipe()
    for fd in (receive, send):
        os.set_blocking(fd, False)
    writer = PipeWriter(send, unread=bounds.unread_bytes)
    try:
        with trio.fail_after(HANG):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.run)
                yield Wire(receive, Asking(connection, writer, send_with(writer), bounds), writer, connection)
                nursery.cancel_scope.cancel()
    finally:
        writer.close()
        os.close(receive)


def send_with(writer: PipeWriter) -> Any:
    return lambda line: writer.send_now(line)


async def test_an_answer_reaches_who_asked() -> None:
    async with open_wire() as wire:
        assert wire.asking.offers == {"sampling": {}}
        got: dict[str, Any] = {}

        async def ask(name: str) -> None:
            got[name] = (await wire.asking.ask(METHOD, {"name": name})).result

        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(ask, name)
            for message in [await wire.message(), await wire.message()]:
                wire.reply(message["id"], message["params"])
        assert got == {"a": {"name": "a"}, "b": {"name": "b"}}


async def test_who_gives_up_takes_back_and_leaves_room_for_others() -> None:
    async with open_wire(client_requests="1") as wire:
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.asking.ask, METHOD, {})
                number = (await wire.message())["id"]
                refused = await wire.asking.ask(METHOD, {})
                assert "limit client_requests" in str((refused.error or {})["message"])
                nursery.cancel_scope.cancel()
            assert (await wire.message())["params"]["requestId"] == number


async def test_a_client_that_reads_slowly_is_not_flooded() -> None:
    async with open_wire(answers_ahead="1000", unread_bytes="500000") as wire:
        params: dict[str, object] = {"text": "x" * 100_000}
        for _ in range(50):  # each would wait unread, with what was asked before
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.asking.ask, METHOD, params)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        assert not wire.writer.broken.is_set()
        assert wire.writer.unread < 300_000
        assert (await wire.message())["id"] == "repl-trio-1"


async def test_the_bound_holds_for_a_client_that_does_not_read(autojump_clock: trio.testing.MockClock) -> None:
    async with open_wire(answers_ahead="1000", client_answer="3") as wire:
        wire.writer.send_now(b"x" * 1_000_000)
        begun = trio.current_time()
        answer = await wire.asking.ask(METHOD, {})
        assert trio.current_time() - begun == 3
        assert "did not answer in 3 s (limit client_answer)" in str((answer.error or {})["message"])
