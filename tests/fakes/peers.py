"""A `CallTool` without peers: each tool of it behaves in one way, and what became of every call is noted."""

from __future__ import annotations

from math import inf
from typing import Any

import trio

from repl_trio.errors import BrokerError
from repl_trio.values import Origin
from repl_trio.wire import frames
from repl_trio.wire.frames import Frame


class FakePeers:
    """Answers `call` by the name of the tool, as the methods below say. `begun`, `left`: tools, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.left: list[str] = []  # cancelled
        self.origins: list[Origin] = []
        self.farewell = 0.0  # seconds that a cancelled call takes to tell its peer; inf: until `released`
        self.released = trio.Event()
        self.go = trio.Event()  # what `held` waits for
        self._changed = trio.Event()

    async def perform(self, op: str, params: dict[str, object], origin: Origin) -> object:
        assert op == "call"
        tool = str(params["tool"])
        self.begun.append(tool)
        self.origins.append(origin)
        self._note()
        try:
            return await getattr(self, f"do_{tool}")(params["arguments"], origin)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                if self.farewell == inf:
                    await self.released.wait()
                else:
                    await trio.sleep(self.farewell)
            self.left.append(tool)
            self._note()
            raise

    async def has_begun(self, count: int) -> None:
        """Wait until this many calls have begun."""
        while len(self.begun) < count:
            await self._changed.wait()

    async def has_left(self, count: int) -> None:
        """Wait until this many calls have been cancelled."""
        while len(self.left) < count:
            await self._changed.wait()

    def _note(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def do_echo(self, arguments: object, _origin: Origin) -> object:
        await trio.lowlevel.checkpoint()
        return {"content": [], "structuredContent": arguments}

    async def do_hang(self, _arguments: object, _origin: Origin) -> object:
        await trio.sleep_forever()

    async def do_held(self, arguments: object, origin: Origin) -> object:
        await self.go.wait()
        return await self.do_echo(arguments, origin)

    async def do_progress(self, _arguments: object, origin: Origin) -> object:
        origin.progress("half way")
        await trio.sleep_forever()

    async def do_refuse(self, _arguments: object, _origin: Origin) -> object:
        raise BrokerError("NOT_GRANTED", "no, not that one", server="s")

    async def do_bug(self, _arguments: object, _origin: Origin) -> object:
        words = "secret"  # not in the line that a traceback shows
        raise LookupError(words)

    async def do_odd(self, _arguments: object, _origin: Origin) -> object:
        return {"content": float("nan")}

    async def do_large(self, arguments: object, _origin: Origin) -> object:
        await trio.lowlevel.checkpoint()
        assert isinstance(arguments, dict)
        return {"content": [{"type": "text", "text": "x" * int(arguments["size"])}]}


class FakeCommands:
    """The writer of a worker that takes every frame at once."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.queued = False

    def send_now(self, line: bytes) -> bool:
        self.frames.append(frames.decode(line.rstrip(b"\n"), frames.TO_WORKER))
        return True

    async def send(self, line: bytes) -> None:
        self.send_now(line)

    async def flushed(self) -> None:
        await trio.lowlevel.checkpoint()


def rpc(run_id: str, number: int, tool: str, **arguments: object) -> Frame:
    """The frame of a call."""
    params = {"server": "s", "tool": tool, "arguments": arguments, "timeout": None}
    return {"frame": "rpc", "id": number, "run_id": run_id, "op": "call", "params": params}
