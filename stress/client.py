"""One server process and its client: every request in a ledger, every answer held against it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from stress.kernel import COOKIE
from stress.record import Record

ROOT = Path(__file__).resolve().parent.parent
ANSWER_BOUND = 60.0
"""seconds. No request here waits for longer than a fraction of this; beyond it something is stuck."""

# -P: the folder that the server is started in must not shadow the standard library.
BOOT = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from repl_trio.__main__ import main; sys.exit(main())"

Message = dict[str, Any]


class Gone(Exception):
    """The server has ended, or takes no more requests: the step that wanted something of it is over."""


class Request:
    """One request: when it was sent, whether the client cancelled it, and what came back."""

    def __init__(self, number: int, what: str) -> None:
        self.number = number
        self.what = what
        self.sent = trio.current_time()
        self.cancelled = False
        self.heard = False  # the server has answered something that was sent after the cancel
        self.answers = 0
        self.message: Message | None = None
        self.done = trio.Event()


class Server:
    """A running server. `hold` lets no more requests out, which makes what is in flight countable."""

    def __init__(self, process: trio.Process, cookie: str, folder: Path, record: Record) -> None:
        self.process = process
        self.pid = process.pid
        self.cookie = cookie
        self.folder = folder
        self.record = record
        self.requests: dict[int, Request] = {}
        self.root_killed = -math.inf  # when a step last killed the root guardian, on trio's clock
        self.ended = trio.Event()  # stdout is at its end
        self.held = False
        self.rest = b""  # what came after the last newline
        self._sending = trio.Lock()
        self._numbers = 0

    # -- asking ------------------------------------------------------------------------------------------------

    async def send(self, method: str, params: Message, what: str = "") -> Request:
        """Write a request. Raises `Gone`."""
        if self.held or self.ended.is_set():
            raise Gone
        return await self._ask(method, params, what)

    async def last(self, tool: str) -> Request:
        """Let no more requests out and write one call behind all that are on their way: an answer to it means that the
        server has read them. Raises `Gone`."""
        self.held = True
        return await self._ask("tools/call", {"name": tool, "arguments": {}}, tool)

    async def _ask(self, method: str, params: Message, what: str) -> Request:
        self._numbers += 1
        request = Request(self._numbers, what or method)
        self.requests[request.number] = request
        await self._write({"jsonrpc": "2.0", "id": request.number, "method": method, "params": params})
        return request

    async def begin(self, tool: str, **arguments: object) -> Request:
        """Write a `tools/call` and return without waiting."""
        given = {key: value for key, value in arguments.items() if value is not None}
        code = str(given.get("code", "")).splitlines()[-1:]
        return await self.send("tools/call", {"name": tool, "arguments": given}, f"{tool} {''.join(code)}".strip())

    async def call(self, tool: str, **arguments: object) -> Message:
        """Call a tool; its structuredContent. Raises `Gone`."""
        return await self.result(await self.begin(tool, **arguments))

    async def result(self, request: Request) -> Message:
        """Wait for the structuredContent of a call that was begun. Raises `Gone`."""
        with trio.move_on_after(ANSWER_BOUND) as scope:
            await request.done.wait()
        stuck = f"request {request.number} ({request.what}) has no answer after {ANSWER_BOUND:g} s"
        if not self.record.check("answers within the bound", not scope.cancelled_caught, stuck):
            raise Gone
        if request.message is None:
            raise Gone
        message, request.message = request.message, None  # thousands of results would make this process large
        found = message.get("result", {}).get("structuredContent")
        refused = f"{request.what}: {str(message)[:300]}"
        if not self.record.check("values are right", isinstance(found, dict), refused):
            raise Gone
        content: Message = found
        return content

    async def cancel(self, request: Request) -> None:
        """Give a request up by notification. Raises `Gone`."""
        if self.held or self.ended.is_set():
            raise Gone
        request.cancelled = True
        params = {"requestId": request.number, "reason": "stress"}
        await self._write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def notify(self, method: str) -> None:
        """Write a notification without parameters."""
        await self._write({"jsonrpc": "2.0", "method": method})

    async def _write(self, message: Message) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        # Shielded: half a line would make the next one garbage.
        with trio.CancelScope(shield=True), trio.move_on_after(ANSWER_BOUND) as scope:
            try:
                async with self._sending:
                    await stdin.send_all(json.dumps(message).encode() + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise Gone from None
        if scope.cancelled_caught:
            self.record.check("answers within the bound", False, "the server does not read its stdin")
            raise Gone

    # -- hearing -----------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Read the server's stdout to its end."""
        stdout = self.process.stdout
        assert stdout is not None
        rest = b""
        try:
            async for chunk in stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._take(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            rest = b""  # our own end was closed on purpose
        finally:
            self.ended.set()
            for request in self.requests.values():
                request.done.set()
        self.rest = rest

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            self.record.check("one answer to each request", False, f"no JSON: {line[:200]!r}")
            return
        if "method" in message:
            return
        request = self.requests.get(message.get("id"))
        if request is None:
            self.record.check("one answer to each request", False, f"an answer to nothing: {line[:200]!r}")
            return
        request.answers += 1
        request.message = message
        request.done.set()
        words = f"request {request.number} ({request.what}) was answered {request.answers} times"
        self.record.check("one answer to each request", request.answers == 1, words)
        if request.heard:
            late = f"request {request.number} ({request.what}) was answered after its cancel was heard"
            self.record.check("no answer once a cancel was heard", False, late)

    async def heard(self, request: Request) -> None:
        """Note that the server has read the cancel of a request: call after the answer to something sent later."""
        request.heard = True
        self.record.check("no answer once a cancel was heard", True, "")

    def balance(self) -> None:
        """Every request that was not cancelled has been answered; call when the server has ended in order."""
        self.record.check("one answer to each request", not self.rest, f"half a line at the end: {self.rest[:80]!r}")
        for request in self.requests.values():
            if not request.cancelled:
                words = f"request {request.number} ({request.what}) was never answered"
                self.record.check("one answer to each request", request.answers == 1, words)

    @property
    def log(self) -> str:
        """What the server wrote to its stderr."""
        return (self.folder / "stderr").read_text(errors="replace")


@asynccontextmanager
async def open_server(folder: Path, record: Record, *limits: str) -> AsyncIterator[Server]:
    """Start a server in a folder of its own and shake hands; it is killed on leaving if it still runs."""
    cookie = uuid.uuid4().hex
    for name in ("project", "tmp", "marks"):
        (folder / name).mkdir(parents=True)
    arguments = [word for limit in limits for word in ("--limit", limit)]
    environment = {**os.environ, COOKIE: cookie, "TMPDIR": str(folder / "tmp")}
    with (folder / "stderr").open("wb") as stderr:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-P", "-c", BOOT, "--log-level", "info", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=folder / "project",
            env=environment,
        )
    server = Server(process, cookie, folder, record)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.listen)
            client = {"name": "stress", "version": "1"}
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
            greeting = await server.send("initialize", hello)
            await greeting.done.wait()
            await server.notify("notifications/initialized")
            yield server
            nursery.cancel_scope.cancel()
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with trio.CancelScope(shield=True):
                    await pipe.aclose()
        if process.returncode is None:
            process.kill()
            with trio.move_on_after(ANSWER_BOUND, shield=True):
                await process.wait()
